#include "equitile/pattern/hilbert.h"

#include <algorithm>
#include <array>
#include <utility>

namespace equitile {
namespace {

// An edge of a box: from its first cell on, `step` cell numbers (negative: backwards) at a time.
struct Edge {
  int64_t step, length;

  int64_t At(int64_t i) const { return i * step; }
  int64_t Last() const { return At(length - 1); }
  Edge First(int64_t n) const { return {step, n}; }
  Edge After(int64_t n) const { return {step, length - n}; }
  Edge Back() const { return {-step, length}; }
};

// Near the half, at least 1 and less than n >= 2; even, except for the half of 2.
int64_t EvenHalf(int64_t n) { return n == 2 ? 1 : n / 2 + n / 2 % 2; }
int64_t OddHalf(int64_t n) { return n / 2 + (n / 2 + 1) % 2; }

class Curve {
 public:
  explicit Curve(int64_t cells) { cells_.reserve(static_cast<size_t>(cells)); }

  // All of a x b x c, from the corner `first` to the other end of edge a, which is even or all
  // three are odd. Which of the other two edges is b does not matter.
  void Walk(int64_t first, Edge a, Edge b, Edge c) {
    if (b.length < c.length) std::swap(b, c);
    if (b.length == 1) {
      for (int64_t i = 0; i < a.length; ++i)
        cells_.push_back(static_cast<int32_t>(first + a.At(i)));
    } else if (2 * a.length > 3 * b.length) {
      const int64_t half = EvenHalf(a.length);
      Walk(first, a.First(half), b, c);
      Walk(first + a.At(half), a.After(half), b, c);
    } else if (a.length % 2 == 1 || 3 * b.length > 4 * c.length) {
      WalkThree(first, a, b, c);
    } else if (c.length % 2 == 1) {
      WalkFive(first, a, c, b);
    } else {
      WalkFive(first, a, b, c);
    }
  }

  std::vector<int32_t> Take() { return std::move(cells_); }

 private:
  // Up b, along a, down b again; c stays whole.
  void WalkThree(int64_t first, Edge a, Edge b, Edge c) {
    const int64_t left = a.length / 2, low = EvenHalf(b.length);
    Walk(first, b.First(low), a.First(left), c);
    Walk(first + b.At(low), a, b.After(low), c);
    Walk(first + a.Last() + b.At(low - 1), b.First(low).Back(), a.After(left).Back(), c);
  }

  // Up b, along c, along a above both, and the same way back. The part along c is odd unless c is
  // even: then the two halves of a are odd, and so is what b leaves.
  void WalkFive(int64_t first, Edge a, Edge b, Edge c) {
    const int64_t low = EvenHalf(b.length), near = c.length / 2;
    const int64_t left = c.length % 2 == 1 ? OddHalf(a.length) : a.length / 2;
    Walk(first, b.First(low), c.First(near), a.First(left));
    Walk(first + b.At(low), c, a.First(left), b.After(low));
    Walk(first + b.At(low - 1) + c.Last(), a, b.First(low).Back(), c.After(near).Back());
    Walk(first + a.Last() + b.At(low) + c.Last(), c.Back(), a.After(left).Back(), b.After(low));
    Walk(first + a.Last() + b.At(low - 1), b.First(low).Back(), c.First(near),
         a.After(left).Back());
  }

  std::vector<int32_t> cells_;
};

}  // namespace

std::vector<int32_t> HilbertCells(int64_t frames, int64_t height, int64_t width) {
  Curve curve(frames * height * width);
  if (frames * height * width == 0) return curve.Take();
  // The longest of the even edges; of all three where none is even.
  std::array<Edge, 3> edges = {Edge{1, width}, {width, height}, {height * width, frames}};
  std::stable_sort(edges.begin(), edges.end(), [](const Edge& x, const Edge& y) {
    return std::pair(x.length % 2, -x.length) < std::pair(y.length % 2, -y.length);
  });
  curve.Walk(0, edges[0], edges[1], edges[2]);
  return curve.Take();
}

}  // namespace equitile

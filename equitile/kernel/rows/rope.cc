#include "equitile/kernel/rows/rope.h"

#include <algorithm>
#include <cmath>

#include "equitile/base/error.h"
#include "equitile/kernel/rows/strips.h"
#include "equitile/pattern/token_place.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/rows/rope.cc"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"

#ifndef EQUITILE_KERNEL_ROPE_ONCE_
#define EQUITILE_KERNEL_ROPE_ONCE_
namespace equitile {

class RopeTable::Walk {
 public:
  Walk(const RopeTable& table, int64_t token) : table_(table), token_(token) {
    if (!table.positions_.empty()) {
      at_ = table.positions_[static_cast<size_t>(token)];
    } else {
      const int64_t row = token / table.width_;
      at_ = {static_cast<int32_t>(row / table.height_), static_cast<int32_t>(row % table.height_),
             static_cast<int32_t>(token % table.width_)};
    }
    for (size_t axis = 0; axis < 3; ++axis) Point(axis);
  }

  void Next() {
    if (!table_.positions_.empty()) return NextListed();
    if (++at_[2] == table_.width_) {
      at_[2] = 0;
      if (++at_[1] == table_.height_) {
        at_[1] = 0;
        if (++at_[0] == table_.frames_) return;  // past the last token
        Point(0);
      }
      Point(1);
    }
    Point(2);
  }

  // Whether an axis has channels among the 8 from this one on, and its angles of these.
  bool Has(size_t axis, int64_t channel) const {
    return table_.axes_[axis].begin <= channel && channel < table_.axes_[axis].end;
  }
  const float* Cos(size_t axis, int64_t channel) const {
    return cos_[axis] + (channel - table_.axes_[axis].begin);
  }
  const float* Sin(size_t axis, int64_t channel) const {
    return sin_[axis] + (channel - table_.axes_[axis].begin);
  }

 private:
  void NextListed() {
    if (++token_ == std::ssize(table_.positions_)) return;  // past the last token
    at_ = table_.positions_[static_cast<size_t>(token_)];
    for (size_t axis = 0; axis < 3; ++axis) Point(axis);
  }

  void Point(size_t a) {
    const Axis& axis = table_.axes_[a];
    const int64_t from = at_[a] * (axis.end - axis.begin);
    cos_[a] = axis.cos.data() + from;
    sin_[a] = axis.sin.data() + from;
  }

  const RopeTable& table_;
  int64_t token_;
  std::array<int32_t, 3> at_;
  const float *cos_[3], *sin_[3];  // of each axis, from its begin on
};

}  // namespace equitile
#endif  // EQUITILE_KERNEL_ROPE_ONCE_

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DR = hn::CappedTag<float, kHeadDimStep>;
using VR = hn::Vec<DR>;
inline constexpr size_t kLanes = hn::MaxLanes(DR());
inline constexpr size_t kGroupVecs = kHeadDimStep / kLanes;

HWY_INLINE VR Normed(const float* x, VR inverse, const float* weight) {
  const DR d;
  return hn::Mul(hn::Mul(hn::LoadU(d, x), inverse), hn::LoadU(d, weight));
}

void NormHeadT(const NormedHead& head, int64_t head_dim, int64_t count, float* rows) {
  const DR d;
  for (int64_t t = 0; t < count; ++t, rows += head_dim) {
    const float* x = head.x + t * head.stride;
    const VR inverse = hn::Set(d, head.inverse_rms[t]);
    for (size_t i = 0; i < static_cast<size_t>(head_dim); i += kLanes) {
      hn::StoreU(Normed(x + i, inverse, head.weight + i), d, rows + i);
    }
  }
}

// 8 channels of all heads of a token: (a, b) -> (a cos - b sin, b cos + a sin), where the second
// factor's product is rounded and the first is fused.
HWY_INLINE void RotateGroup(const NormedHeads& heads, const RopeTable::Walk& walk, int64_t channel,
                            int64_t head_dim, float inverse_rms, float* x) {
  const DR d;
  const VR inverse = hn::Set(d, inverse_rms);
  size_t first = 0;
  while (!walk.Has(first, channel)) ++first;
  VR cos[kGroupVecs], sin[kGroupVecs];
  for (size_t v = 0; v < kGroupVecs; ++v) {
    const int64_t at = channel + static_cast<int64_t>(v * kLanes);
    cos[v] = hn::LoadU(d, walk.Cos(first, at));
    sin[v] = hn::LoadU(d, walk.Sin(first, at));
    for (size_t axis = first + 1; axis < 3 && walk.Has(axis, channel); ++axis) {
      cos[v] = hn::Or(cos[v], hn::LoadU(d, walk.Cos(axis, at)));
      sin[v] = hn::Or(sin[v], hn::LoadU(d, walk.Sin(axis, at)));
    }
  }
  for (int64_t head = 0; head < heads.heads; ++head) {
    float* const to = x + head * head_dim + channel;
    const float* const weight = heads.weight + head * head_dim + channel;
    VR rotated[kGroupVecs];
    for (size_t v = 0; v < kGroupVecs; ++v) {
      const VR normed = Normed(to + v * kLanes, inverse, weight + v * kLanes);
#if HWY_TARGET == HWY_SCALAR
      const VR other = Normed(to + (v ^ 1), inverse, weight + (v ^ 1));
#else
      const VR other = hn::Reverse2(d, normed);
#endif
      rotated[v] = hn::MulAdd(normed, cos[v], hn::Mul(other, sin[v]));
    }
    for (size_t v = 0; v < kGroupVecs; ++v) hn::StoreU(rotated[v], d, to + v * kLanes);
  }
}

void NormAndRotateT(const NormedHeads& heads, const RopeTable& rope, int64_t first_token,
                    int64_t count) {
  const int64_t head_dim = rope.head_dim();
  RopeTable::Walk walk(rope, first_token);
  for (int64_t t = 0; t < count; ++t, walk.Next()) {
    for (int64_t channel = 0; channel < head_dim; channel += kHeadDimStep)
      RotateGroup(heads, walk, channel, head_dim, heads.inverse_rms[t], heads.x + t * heads.stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(NormHeadT);
HWY_EXPORT(NormAndRotateT);

constexpr double kTheta = 10000.0;
}  // namespace

RopeTable::RopeTable(const TokenGrid& grid, int64_t head_dim)
    : head_dim_(head_dim), frames_(grid.frames), height_(grid.height), width_(grid.width) {
  EQ_CHECK(head_dim > 0 && head_dim % kHeadDimStep == 0 && head_dim <= kMaxHeadDim, "head_dim {}",
           head_dim);
  const int64_t small = 2 * (head_dim / 6);
  const int64_t channels[] = {head_dim - 2 * small, small, small};
  const int64_t positions[] = {grid.frames, grid.height, grid.width};
  for (int64_t a = 0, first = 0; a < 3; first += channels[a++]) {
    Axis& axis = axes_[a];
    axis.first = first;
    axis.channels = channels[a];
    axis.begin = first / kHeadDimStep * kHeadDimStep;
    axis.end = RoundUp(first + channels[a], kHeadDimStep);
    const int64_t stride = axis.end - axis.begin;
    axis.cos = AlignedBuffer<float>::Zeroed(positions[a] * stride);
    axis.sin = AlignedBuffer<float>::Zeroed(positions[a] * stride);
    for (int64_t i = 0; i < axis.channels; i += 2) {
      const double frequency =
          1.0 / std::pow(kTheta, static_cast<double>(i) / static_cast<double>(axis.channels));
      for (int64_t p = 0; p < positions[a]; ++p) {
        const double angle = static_cast<double>(p) * frequency;
        const auto cos = static_cast<float>(std::cos(angle));
        const auto sin = static_cast<float>(std::sin(angle));
        const int64_t at = p * stride + first - axis.begin + i;
        axis.cos[at] = axis.cos[at + 1] = cos;
        axis.sin[at] = -sin;
        axis.sin[at + 1] = sin;
      }
    }
  }
  for (const int32_t place : PlaceOfToken(grid)) {
    const auto width = static_cast<int32_t>(width_), height = static_cast<int32_t>(height_);
    positions_.push_back({place / width / height, place / width % height, place % width});
  }
}

void RopeTable::Angles(int64_t token, std::span<float> cos, std::span<float> sin) const {
  const Walk walk(*this, token);
  for (size_t axis = 0; axis < 3; ++axis) {
    const int64_t first = axes_[axis].first;
    for (int64_t c = first; c < first + axes_[axis].channels; c += 2) {
      cos[static_cast<size_t>(c / 2)] = *walk.Cos(axis, c);
      sin[static_cast<size_t>(c / 2)] = *walk.Sin(axis, c + 1);
    }
  }
}

void NormHeadRows(const NormedHead& head, int64_t head_dim, int64_t count, float* rows) {
  HWY_DYNAMIC_DISPATCH(NormHeadT)(head, head_dim, count, rows);
}

void NormAndRotate(const NormedHeads& heads, const RopeTable& rope, int64_t first_token,
                   int64_t count) {
  HWY_DYNAMIC_DISPATCH(NormAndRotateT)(heads, rope, first_token, count);
}

}  // namespace equitile
#endif  // HWY_ONCE

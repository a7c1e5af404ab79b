#include "equitile/kernel/rope.h"

#include <algorithm>
#include <cmath>

#include "equitile/base/error.h"
#include "equitile/kernel/strips.h"
#include "equitile/pattern/token_place.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/rope.cc"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"

#ifndef EQUITILE_KERNEL_ROPE_ONCE_
#define EQUITILE_KERNEL_ROPE_ONCE_
namespace equitile {

// Consecutive tokens mostly differ in one position only, so only that part is copied anew.
class RopeTable::Walk {
 public:
  Walk(const RopeTable& table, int64_t token)
      : table_(table),
        token_(token),
        at_{token / table.width_ / table.height_, token / table.width_ % table.height_,
            token % table.width_} {
    if (!table.positions_.empty()) std::ranges::copy(Listed(), at_);
    for (int axis = 0; axis < 3; ++axis) Fill(axis);
  }

  void Next() {
    if (!table_.positions_.empty()) return NextListed();
    if (++at_[2] == table_.width_) {
      at_[2] = 0;
      if (++at_[1] == table_.height_) {
        at_[1] = 0;
        if (++at_[0] == table_.axes_[0].positions) return;  // past the last token
        Fill(0);
      }
      Fill(1);
    }
    Fill(2);
  }

  const float* cos() const { return cos_; }
  const float* sin() const { return sin_; }

 private:
  const std::array<int32_t, 3>& Listed() const {
    return table_.positions_[static_cast<size_t>(token_)];
  }

  void NextListed() {
    if (++token_ == std::ssize(table_.positions_)) return;  // past the last token
    const std::array<int32_t, 3>& next = Listed();
    for (int axis = 0; axis < 3; ++axis) {
      if (at_[axis] == next[static_cast<size_t>(axis)]) continue;
      at_[axis] = next[static_cast<size_t>(axis)];
      Fill(axis);
    }
  }

  void Fill(int a) {
    const Axis& axis = table_.axes_[a];
    const int64_t from = at_[a] * axis.channels;
    std::copy_n(axis.cos.data() + from, axis.channels, cos_ + axis.begin);
    std::copy_n(axis.sin.data() + from, axis.channels, sin_ + axis.begin);
  }

  const RopeTable& table_;
  int64_t token_;
  int64_t at_[3];
  alignas(64) float cos_[kMaxHeadDim];
  alignas(64) float sin_[kMaxHeadDim];
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

HWY_INLINE VR Normed(const NormedHead& head, const float* x, VR inverse, size_t i) {
  const DR d;
  return hn::Mul(hn::Mul(hn::LoadU(d, x + i), inverse), hn::LoadU(d, head.weight + i));
}

void NormHeadT(const NormedHead& head, int64_t head_dim, int64_t count, float* rows) {
  const DR d;
  for (int64_t t = 0; t < count; ++t, rows += head_dim) {
    const float* x = head.x + t * head.stride;
    const VR inverse = hn::Set(d, head.inverse_rms[t]);
    for (size_t i = 0; i < static_cast<size_t>(head_dim); i += kLanes) {
      hn::StoreU(Normed(head, x, inverse, i), d, rows + i);
    }
  }
}

// (a, b) -> (a cos - b sin, b cos + a sin): the second factor's product is rounded, the first is
// fused.
HWY_INLINE void RotateRow(const float* HWY_RESTRICT cos, const float* HWY_RESTRICT sin,
                          size_t head_dim, float* HWY_RESTRICT row) {
#if HWY_TARGET == HWY_SCALAR
  for (size_t i = 0; i < head_dim; i += 2) {
    const float a = row[i], b = row[i + 1];
    row[i] = a * cos[i] + b * sin[i];
    row[i + 1] = b * cos[i + 1] + a * sin[i + 1];
  }
#else
  const DR d;
  for (size_t i = 0; i < head_dim; i += kLanes) {
    const VR v = hn::LoadU(d, row + i);
    const VR turned = hn::Mul(hn::Reverse2(d, v), hn::LoadU(d, sin + i));
    hn::StoreU(hn::MulAdd(v, hn::LoadU(d, cos + i), turned), d, row + i);
  }
#endif
}

void NormAndRotateT(const NormedHead& head, const RopeTable& rope, int64_t first_token,
                    int64_t count, float* rows) {
  const int64_t head_dim = rope.head_dim();
  NormHeadT(head, head_dim, count, rows);
  RopeTable::Walk walk(rope, first_token);
  for (int64_t t = 0; t < count; ++t, rows += head_dim) {
    RotateRow(walk.cos(), walk.sin(), static_cast<size_t>(head_dim), rows);
    walk.Next();
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
    : head_dim_(head_dim), height_(grid.height), width_(grid.width) {
  EQ_CHECK(head_dim > 0 && head_dim % kHeadDimStep == 0 && head_dim <= kMaxHeadDim, "head_dim {}",
           head_dim);
  const int64_t small = 2 * (head_dim / 6);
  const int64_t channels[] = {head_dim - 2 * small, small, small};
  const int64_t positions[] = {grid.frames, grid.height, grid.width};
  int64_t begin = 0;
  for (int a = 0; a < 3; ++a) {
    Axis& axis = axes_[a];
    axis.begin = begin;
    axis.channels = channels[a];
    axis.positions = positions[a];
    axis.cos = AlignedBuffer<float>(axis.positions * axis.channels);
    axis.sin = AlignedBuffer<float>(axis.positions * axis.channels);
    for (int64_t i = 0; i < axis.channels; i += 2) {
      const double frequency =
          1.0 / std::pow(kTheta, static_cast<double>(i) / static_cast<double>(axis.channels));
      for (int64_t p = 0; p < axis.positions; ++p) {
        const double angle = static_cast<double>(p) * frequency;
        const auto cos = static_cast<float>(std::cos(angle));
        const auto sin = static_cast<float>(std::sin(angle));
        const int64_t at = p * axis.channels + i;
        axis.cos[at] = axis.cos[at + 1] = cos;
        axis.sin[at] = -sin;
        axis.sin[at + 1] = sin;
      }
    }
    begin += axis.channels;
  }
  for (const int32_t place : PlaceOfToken(grid)) {
    const auto width = static_cast<int32_t>(width_), height = static_cast<int32_t>(height_);
    positions_.push_back({place / width / height, place / width % height, place % width});
  }
}

void RopeTable::Angles(int64_t token, std::span<float> cos, std::span<float> sin) const {
  const Walk walk(*this, token);
  for (size_t i = 0; i < static_cast<size_t>(head_dim_ / 2); ++i) {
    cos[i] = walk.cos()[2 * i];
    sin[i] = walk.sin()[2 * i + 1];
  }
}

void NormHeadRows(const NormedHead& head, int64_t head_dim, int64_t count, float* rows) {
  HWY_DYNAMIC_DISPATCH(NormHeadT)(head, head_dim, count, rows);
}

void NormAndRotateRows(const NormedHead& head, const RopeTable& rope, int64_t first_token,
                       int64_t count, float* rows) {
  HWY_DYNAMIC_DISPATCH(NormAndRotateT)(head, rope, first_token, count, rows);
}

}  // namespace equitile
#endif  // HWY_ONCE

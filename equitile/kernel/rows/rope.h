// Queries and keys on their way into attention: the RMS norm's last step and the rotation of
// adjacent channels by the token's place in the video.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/aligned_buffer.h"
#include "equitile/pattern/token_grid.h"

namespace equitile {

// Angles of one video. Channels of a head belong to the axes in this order: frames, height, width;
// height and width have 2 floor(head_dim / 6) each, frames the rest. Pair i of an axis with n
// channels turns by position * 10000^(-2i/n). Stored per axis and position, not per token: a few
// kilobytes that stay in L1. Tokens are numbered along the grid's home order.
class RopeTable {
 public:
  RopeTable() = default;
  // head_dim: a multiple of 8. Angles, cosines and sines in double, rounded once.
  RopeTable(const TokenGrid& grid, int64_t head_dim);

  int64_t head_dim() const { return head_dim_; }
  // cos, sin: [head_dim / 2] of one video token.
  void Angles(int64_t token, std::span<float> cos, std::span<float> sin) const;

  // Where the angles of tokens lie, one token after the other.
  class Walk;

 private:
  // Cosines twice each, sines as -sin, +sin, as vectors read them; [positions][end - begin], whole
  // groups of 8 channels, zeros where a channel belongs to another axis. What a group needs is
  // then the sum of its axes' numbers, which is exact: nothing is put together per token.
  struct Axis {
    int64_t begin = 0, end = 0;       // channels, multiples of 8
    int64_t first = 0, channels = 0;  // its own
    AlignedBuffer<float> cos, sin;
  };

  int64_t head_dim_ = 0, frames_ = 1, height_ = 1, width_ = 1;
  Axis axes_[3];
  std::vector<std::array<int32_t, 3>> positions_;  // [tokens]; empty: at home in fhw
};

// One head of a norm over all heads: channels [head_dim] of a token are x * inverse_rms * weight.
struct NormedHead {
  const float* x = nullptr;  // [tokens], `stride` floats apart, channels of this head
  int64_t stride = 0;
  const float* inverse_rms = nullptr;  // [tokens]
  const float* weight = nullptr;       // [head_dim], of this head
};

// rows [count][head_dim]: normed. head_dim: a multiple of 8.
void NormHeadRows(const NormedHead& head, int64_t head_dim, int64_t count, float* rows);

// All heads of consecutive tokens.
struct NormedHeads {
  float* x = nullptr;  // [tokens], `stride` floats apart, [heads][head_dim] each
  int64_t stride = 0;
  int64_t heads = 1;
  const float* inverse_rms = nullptr;  // [tokens]
  const float* weight = nullptr;       // [heads][head_dim]
};

// x * inverse_rms * weight, then rotated, where they lie. x and inverse_rms begin at the first
// token of the call, which is `first_token` of the video.
void NormAndRotate(const NormedHeads& heads, const RopeTable& rope, int64_t first_token,
                   int64_t count);

}  // namespace equitile

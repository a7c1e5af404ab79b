// Packed strips: 16 consecutive tokens of one lane's order, laid out as the attention kernel reads
// them. What the kernel computes on and what travels between ranks are the same bytes, so packing
// happens once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "equitile/base/range.h"
#include "equitile/base/thread_pool.h"
#include "equitile/kernel/compute.h"
#include "equitile/kernel/rows/row_producer.h"
#include "equitile/pattern/block_grid.h"
#include "equitile/tensor/view.h"

namespace equitile {

inline constexpr int64_t kHeadDimStep = 8;
inline constexpr int64_t kMaxHeadDim = 512;

// In f32 both are 32-bit words; integers are 2 (int16) or 4 (int8) to a word, as dot products of
// words take them. Tokens beyond the end of the sequence and dims beyond head_dim are 0. Behind the
// integers lie 16 floats, the scale of each token: what one unit is worth, of values as its
// logarithm to base 2 (it is added to that of the key's weight). The scale of a token that is not
// finite is NaN.
enum class StripLayout : uint8_t {
  kQuery,  // f32 [head_dim][16 tokens]: queries are the lanes of a vector, so that a row's maximum
           // needs no shuffles; integers [dims / n][16 tokens][n dims]
  kKey,    // f32 [head_dim / 16][16 tokens][16 dims]: elements are broadcast; a register tile reads
           // whole cache lines; integers [dims / 8n][16 tokens][8n dims], bytes of them + 128
  kValue,  // f32 as keys; integers [dims / 16][16 tokens / n][16 dims][n tokens], where pairs of
           // tokens are two apart: 0 and 2, 1 and 3, 4 and 6, ...
};

// Numbers in a word of 32 bits.
constexpr int64_t WordValues(Compute compute) {
  return compute == Compute::kInt8 ? 4 : compute == Compute::kInt16 ? 2 : 1;
}

// head_dim with the zeros that fill the last eight words of a token, or 16 floats.
constexpr int64_t PaddedDim(int64_t head_dim, Compute compute) {
  return RoundUp(head_dim, std::max<int64_t>(16, 8 * WordValues(compute)));
}

// Of the integers alone; the scales lie behind them.
constexpr int64_t StripWordBytes(int64_t head_dim, Compute compute) {
  return PaddedDim(head_dim, compute) * kStripTokens * 4 / WordValues(compute);
}
constexpr int64_t StripBytes(int64_t head_dim, Compute compute = Compute::kF32) {
  return StripWordBytes(head_dim, compute) + (compute == Compute::kF32 ? 0 : kStripTokens * 4);
}

// Where many strips lie one after the other they are this many bytes apart, not StripBytes: the
// product with V walks the same kilobyte of eight strips at once, and at head_dim 64 or 128 these
// would all fall into the same sets of L1 (0.94 of peak without the gap, 0.98 with it). Of integers
// it is half a kilobyte, and the scales are a part of the gap.
constexpr int64_t StripPitch(int64_t head_dim, Compute compute = Compute::kF32) {
  return StripBytes(head_dim, compute) + (compute == Compute::kF32 ? 1024 : 448);
}

// The largest integer of a query or key: a sum of head_dim products stays within int32. Values are
// multiplied by weights of at most WeightTop and summed over a chunk of 128 keys.
constexpr int32_t KeyTop(int64_t head_dim, Compute compute) {
  if (compute == Compute::kInt8) return 127;
  int32_t top = 4095;
  while (int64_t{top} * top * head_dim > INT32_MAX) --top;
  return top;
}
constexpr int32_t ValueTop(Compute compute) { return compute == Compute::kInt8 ? 127 : 4095; }
constexpr int32_t WeightTop(Compute compute) { return compute == Compute::kInt8 ? 255 : 4095; }

// Scales do not get smaller than that of a token whose largest element is this: a token of zeros
// has one too, and the divisor, which leaves the scales of values out, stays in the range of f32.
inline constexpr float kSmallestToken = 0x1p-80f;

// Strip s of lane l starts at strips[l * strips_per_lane + s], 64-byte aligned. Strips that no row
// asks for may be null.
struct StripTable {
  std::span<const std::byte* const> strips;
  int64_t strips_per_lane = 0;
  Compute compute = Compute::kF32;

  const std::byte* At(int64_t lane, int64_t strip) const {
    return strips[static_cast<size_t>(lane * strips_per_lane + strip)];
  }
};

// Where the rows of Q, K or V come from: exactly one of the three.
struct TokenSource {
  TokenSource() = default;
  TokenSource(const ConstView& v) : view(v) {}
  TokenSource(const StripTable& s) : strips(s) {}
  TokenSource(RowProducer p) : producer(p) {}

  bool IsStrips() const { return strips.strips_per_lane > 0; }
  bool IsProducer() const { return static_cast<bool>(producer); }

  ConstView view;  // [batch, tokens, heads, head_dim], f32, bf16 or f16, any strides
  StripTable strips;
  RowProducer producer;
};

// Packs strips [strips.begin, strips.end) of one lane, one after the other, from a view or a
// producer. `tokens` is the length of the sequence, `token_at_position` the lane's token order
// (null: natural). The only place where a token is rounded, by its own scale: it does not matter
// who packs it, in which order, beside which others.
struct PackArgs {
  StripLayout layout = StripLayout::kKey;
  Compute compute = Compute::kF32;
  const TokenSource* source = nullptr;
  Lanes lanes;
  int64_t lane = 0;
  int64_t tokens = 0;
  int64_t head_dim = 0;
  const int32_t* token_at_position = nullptr;
  Range strips;
  int64_t pitch = 0;              // 0: StripBytes
  const float* center = nullptr;  // [head_dim], taken from every row before it is rounded; f32: not
};
void PackStrips(const PackArgs& args, std::byte* out);

// A token that travels alone, since its strip lies on several homes: its integers, then the largest
// magnitude of its row, from which its scale follows.
constexpr int64_t RoundedTokenBytes(int64_t head_dim, Compute compute) {
  return head_dim * 4 / WordValues(compute) + 4;
}
struct TokenRounding {
  StripLayout layout = StripLayout::kKey;
  Compute compute = Compute::kInt16;  // not f32
  int64_t head_dim = 0;
};
// row [head_dim] -> RoundedTokenBytes, and back to a row that PackStrips rounds to the very
// integers and scale that it gives the first one. A row that is not finite becomes NaN.
void RoundToken(const TokenRounding& rounding, const float* row, std::byte* to);
void UnroundToken(const TokenRounding& rounding, const std::byte* from, float* row);

}  // namespace equitile

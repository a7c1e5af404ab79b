// Packed strips: 16 consecutive tokens of one lane's order, laid out as the attention kernel reads
// them. What the kernel computes on and what travels between ranks are the same bytes, so packing
// happens once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "equitile/base/range.h"
#include "equitile/base/thread_pool.h"
#include "equitile/kernel/row_producer.h"
#include "equitile/pattern/block_grid.h"
#include "equitile/tensor/view.h"

namespace equitile {

inline constexpr int64_t kHeadDimStep = 8;
inline constexpr int64_t kMaxHeadDim = 512;

// Always f32. Tokens beyond the end of the sequence and dims beyond head_dim are 0.
enum class StripLayout : uint8_t {
  kQuery,     // [head_dim][16 tokens]: queries are the lanes of a vector, so that a row's maximum
              // needs no shuffles
  kKeyValue,  // [head_dim / 16][16 tokens][16 dims]: elements are broadcast; a register tile reads
              // whole cache lines
};

constexpr int64_t StripBytes(int64_t head_dim) {
  return RoundUp(head_dim, 16) * kStripTokens * static_cast<int64_t>(sizeof(float));
}

// Where many strips lie one after the other they are this many bytes apart, not StripBytes: the
// product with V walks the same kilobyte of eight strips at once, and at head_dim 64 or 128 these
// would all fall into the same sets of L1 (0.94 of peak without the gap, 0.98 with it).
constexpr int64_t StripPitch(int64_t head_dim) { return StripBytes(head_dim) + 1024; }

// Strip s of lane l starts at strips[l * strips_per_lane + s], 64-byte aligned. Strips that no row
// asks for may be null.
struct StripTable {
  std::span<const std::byte* const> strips;
  int64_t strips_per_lane = 0;

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
// (null: natural).
struct PackArgs {
  StripLayout layout = StripLayout::kKeyValue;
  const TokenSource* source = nullptr;
  Lanes lanes;
  int64_t lane = 0;
  int64_t tokens = 0;
  int64_t head_dim = 0;
  const int32_t* token_at_position = nullptr;
  Range strips;
  int64_t pitch = 0;  // 0: StripBytes(head_dim)
};
void PackStrips(const PackArgs& args, std::byte* out);

}  // namespace equitile

// Sums over tokens, and what sums of strips tell about attention: the cheap look at Q and K from
// which masks are predicted. Sums are exact, so that parts of a strip or block that lie on several
// ranks add up to the same bits in whatever order they meet.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/pattern/block_grid.h"

namespace equitile {

// Largest absolute value that can be pooled. Every value is rounded to a multiple of 2^-28; sums of
// up to 256 of them (a block) then fit the 53 bits of a double, and adding is exact.
inline constexpr float kPoolLimit = 65536.0f;

// Adds rows [count][head_dim], `stride` floats apart, to sums [head_dim]. False, and sums are
// undefined, where a value is beyond the limit or not a number.
bool AddToPool(const float* rows, int64_t count, int64_t head_dim, int64_t stride, double* sums);

// Means of the strips of one lane, of queries and of keys.
struct StripMeans {
  BlockGrid grid;
  int64_t head_dim = 0;
  const float* q = nullptr;  // [query strips][head_dim]
  const float* k = nullptr;  // [key strips][head_dim]
};

// Shares of attention as integers: this many are all of it.
inline constexpr uint32_t kWholeMass = 1U << 24;

// How much of a query block's attention each key block holds, as far as the means of strips of 16
// tokens tell: with E_ij the sum over strips a of block i and b of block j of n_a n_b exp(scale q_a
// k_b), n their tokens,
//   mass_ij = E_ij / sum_j' E_ij'.
// Normalised per query block, not per strip: strips that see much count for much.
class MassPredictor {
 public:
  // Lays the keys out for PredictRow.
  MassPredictor(const StripMeans& means, float scale);

  // masses: [kv blocks], rounded to integers of kWholeMass. Thread-safe. scratch: ScratchFloats().
  // NaN or infinite means give undefined masses, never undefined behaviour.
  void PredictRow(int64_t q_block, float* scratch, uint32_t* masses) const;
  int64_t ScratchFloats() const { return kBlockStrips * pitch_; }

 private:
  static constexpr int64_t kBlockStrips = kMaxBlockTokens / kStripTokens;

  StripMeans means_;
  float scale_log2_ = 0;
  int64_t strips_ = 0, pitch_ = 0, kv_blocks_ = 0;
  std::vector<float> keys_;         // [head_dim][pitch]: strips are the lanes of a vector
  std::vector<float> log2_tokens_;  // [pitch]; beyond the last strip: far below everything
};

}  // namespace equitile

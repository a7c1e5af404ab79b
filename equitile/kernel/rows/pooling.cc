#include "equitile/kernel/rows/pooling.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/rows/pooling.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/simd/exp-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Adding and subtracting 1.5 * 2^24 leaves the nearest multiple of 2^-28.
inline constexpr double kRoundTo28Bits = 1.5 * (1 << 24);

bool AddRows(const float* rows, size_t count, size_t head_dim, size_t stride, double* sums) {
  const hn::CappedTag<double, 4> d;
  const hn::Rebind<float, decltype(d)> df;
  const auto magic = hn::Set(d, kRoundTo28Bits);
  const auto limit = hn::Set(df, kPoolLimit);
  const size_t lanes = hn::Lanes(d);
  auto good = hn::Eq(limit, limit);
  for (size_t i = 0; i < head_dim; i += lanes) {
    auto sum = hn::LoadU(d, sums + i);
    for (size_t t = 0; t < count; ++t) {
      const auto x = hn::LoadU(df, rows + t * stride + i);
      good = hn::And(good, hn::Le(hn::Abs(x), limit));  // false for NaN
      sum = hn::Add(sum, hn::Sub(hn::Add(hn::PromoteTo(d, x), magic), magic));
    }
    hn::StoreU(sum, d, sums + i);
  }
  return hn::AllTrue(df, good);
}

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;

// scores[strips of the block][pitch] = q k + log2 of the keys' tokens, in units of log2; returns
// the largest.
float ScoreStrips(const float* q, size_t strips, size_t head_dim, const float* keys, size_t pitch,
                  const float* log2_tokens, float scale_log2, float* scores) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF largest = hn::Set(d, -1e38f);
  const VF scale = hn::Set(d, scale_log2);
  for (size_t b = 0; b < pitch; b += lanes) {
    const VF tokens = hn::LoadU(d, log2_tokens + b);
    for (size_t a = 0; a < strips; a += 4) {
      const size_t n = std::min<size_t>(4, strips - a);
      VF sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
      for (size_t i = 0; i < head_dim; ++i) {
        const VF key = hn::LoadU(d, keys + i * pitch + b);
        for (size_t r = 0; r < 4; ++r) {
          const float* row = q + std::min(a + r, strips - 1) * head_dim;
          sum[r] = hn::MulAdd(hn::Set(d, row[i]), key, sum[r]);
        }
      }
      for (size_t r = 0; r < n; ++r) {
        const VF score = hn::MulAdd(sum[r], scale, tokens);
        hn::StoreU(score, d, scores + (a + r) * pitch + b);
        largest = hn::Max(largest, score);
      }
    }
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// scores[0][b] becomes sum over a of tokens[a] * 2^(scores[a][b] - largest).
void SumExponentials(size_t strips, const float* tokens, size_t pitch, float largest,
                     float* scores) {
  const DF d;
  const VF top = hn::Set(d, largest);
  for (size_t b = 0; b < pitch; b += hn::Lanes(d)) {
    VF sum = hn::Zero(d);
    for (size_t a = 0; a < strips; ++a) {
      const VF e = Exp2(d, hn::Sub(hn::LoadU(d, scores + a * pitch + b), top));
      sum = hn::MulAdd(hn::Set(d, tokens[a]), e, sum);
    }
    hn::StoreU(sum, d, scores + b);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {

HWY_EXPORT(AddRows);
HWY_EXPORT(ScoreStrips);
HWY_EXPORT(SumExponentials);

constexpr int64_t kPitchStep = 16;  // the widest vector

}  // namespace

bool AddToPool(const float* rows, int64_t count, int64_t head_dim, int64_t stride, double* sums) {
  return HWY_DYNAMIC_DISPATCH(AddRows)(rows, static_cast<size_t>(count),
                                       static_cast<size_t>(head_dim), static_cast<size_t>(stride),
                                       sums);
}

MassPredictor::MassPredictor(const StripMeans& means, float scale)
    : means_(means),
      scale_log2_(scale * 1.4426950408889634f),
      strips_(CeilDiv(means.grid.kv_tokens, kStripTokens)),
      pitch_(RoundUp(strips_, kPitchStep)),
      kv_blocks_(means.grid.KvBlocks()),
      keys_(static_cast<size_t>(means.head_dim * pitch_), 0.0f),
      log2_tokens_(static_cast<size_t>(pitch_), -1e38f) {
  for (int64_t b = 0; b < strips_; ++b) {
    const int64_t tokens = std::min(kStripTokens, means.grid.kv_tokens - b * kStripTokens);
    log2_tokens_[static_cast<size_t>(b)] = std::log2(static_cast<float>(tokens));
    for (int64_t i = 0; i < means.head_dim; ++i)
      keys_[static_cast<size_t>(i * pitch_ + b)] = means.k[b * means.head_dim + i];
  }
}

void MassPredictor::PredictRow(int64_t q_block, float* scratch, uint32_t* masses) const {
  const Range tokens = means_.grid.QBlockTokens(q_block);
  const int64_t first = tokens.begin / kStripTokens;
  const int64_t strips = CeilDiv(tokens.end, kStripTokens) - first;
  float strip_tokens[kBlockStrips];
  for (int64_t a = 0; a < strips; ++a) {
    strip_tokens[a] =
        static_cast<float>(std::min(kStripTokens, tokens.end - (first + a) * kStripTokens));
  }
  const float largest = HWY_DYNAMIC_DISPATCH(ScoreStrips)(
      means_.q + first * means_.head_dim, static_cast<size_t>(strips),
      static_cast<size_t>(means_.head_dim), keys_.data(), static_cast<size_t>(pitch_),
      log2_tokens_.data(), scale_log2_, scratch);
  HWY_DYNAMIC_DISPATCH(SumExponentials)
  (static_cast<size_t>(strips), strip_tokens, static_cast<size_t>(pitch_), largest, scratch);
  // Sums in double: rounding to 2^-24 is then the only one that counts.
  const int64_t per_block = means_.grid.block_tokens / kStripTokens;
  double total = 0;
  for (int64_t b = 0; b < strips_; ++b) total += static_cast<double>(scratch[b]);
  for (int64_t j = 0; j < kv_blocks_; ++j) {
    double sum = 0;
    for (int64_t b = j * per_block; b < std::min(strips_, (j + 1) * per_block); ++b)
      sum += static_cast<double>(scratch[b]);
    const double share = sum / total * kWholeMass;
    masses[j] = share >= 0 && share <= kWholeMass ? static_cast<uint32_t>(std::lround(share)) : 0;
  }
}

}  // namespace equitile
#endif  // HWY_ONCE

#include "equitile/kernel/attention/block_means.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/attention/block_means.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/simd/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// sum[dim] = the sum over `tokens` tokens of a strip, added to what is there unless `first`.
void AddStrip(const float* HWY_RESTRICT strip, int64_t tokens, int64_t head_dim, bool first,
              float* HWY_RESTRICT sum) {
  for (int64_t dim = 0; dim < head_dim; dim += static_cast<int64_t>(kVecFloats)) {
    const float* at = strip + dim / 16 * 256 + dim % 16;
    VF total = hn::LoadU(DF(), at);
    for (int64_t t = 1; t < tokens; ++t) total = hn::Add(total, hn::LoadU(DF(), at + t * 16));
    if (!first) total = hn::Add(hn::LoadU(DF(), sum + dim), total);
    hn::StoreU(total, DF(), sum + dim);
  }
}

void BlockMeansT(const BlockMeansArgs& args, float* means) {
  alignas(64) std::byte packed[StripBytes(kMaxHeadDim)];
  // Whole vectors are written, head_dim may end within one.
  alignas(64) float sum[kMaxHeadDim];
  for (int64_t block = args.blocks.begin; block < args.blocks.end; ++block, means += args.stride) {
    const Range tokens = args.grid.KvBlockTokens(block);
    for (int64_t begin = tokens.begin; begin < tokens.end; begin += kStripTokens) {
      const int64_t strip = begin / kStripTokens;
      const std::byte* from = packed;
      if (args.source->IsStrips()) {
        from = args.source->strips.At(args.lane, strip);
      } else {
        PackStrips({.layout = StripLayout::kKey,
                    .source = args.source,
                    .lanes = args.lanes,
                    .lane = args.lane,
                    .tokens = args.grid.kv_tokens,
                    .head_dim = args.head_dim,
                    .token_at_position = args.token_at_position,
                    .strips = {strip, strip + 1}},
                   packed);
      }
      AddStrip(reinterpret_cast<const float*>(from), std::min(kStripTokens, tokens.end - begin),
               args.head_dim, begin == tokens.begin, sum);
    }
    const float share = 1.0f / static_cast<float>(tokens.size());
    for (int64_t dim = 0; dim < args.head_dim; ++dim) means[dim] = sum[dim] * share;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(BlockMeansT);
}  // namespace

void BlockMeans(const BlockMeansArgs& args, float* means) {
  HWY_DYNAMIC_DISPATCH(BlockMeansT)(args, means);
}

}  // namespace equitile
#endif  // HWY_ONCE

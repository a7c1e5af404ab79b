// Block masses: what share of its row's softmax each kept block holds. A row's sum is known at its
// end only: until then its group keeps, per chunk and query, the maximum of that moment and the sum
// of exponentials of each block's part of the chunk.
#if defined(EQUITILE_KERNEL_ATTENTION_MASSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_ATTENTION_MASSES_INL_H_
#undef EQUITILE_KERNEL_ATTENTION_MASSES_INL_H_
#else
#define EQUITILE_KERNEL_ATTENTION_MASSES_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "equitile/kernel/attention/attention_group.h"
#include "equitile/kernel/simd/exp-inl.h"
#include "equitile/kernel/simd/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// sum[16 queries] of p[tokens][16]. Four chains: one alone would take as long as its additions wait
// for each other.
HWY_INLINE void SumTokens(const float* HWY_RESTRICT p, int64_t tokens, float* HWY_RESTRICT sum) {
  constexpr size_t kChains = 4 * kStripVecs;
  VF chain[kChains];
  for (size_t i = 0; i < kChains; ++i) chain[i] = hn::Zero(DF());
  for (; tokens >= 4; tokens -= 4) {
    EQ_UNROLL
    for (size_t i = 0; i < kChains; ++i, p += kVecFloats)
      chain[i] = hn::Add(chain[i], hn::Load(DF(), p));
  }
  for (; tokens > 0; --tokens) {
    for (size_t v = 0; v < kStripVecs; ++v, p += kVecFloats)
      chain[v] = hn::Add(chain[v], hn::Load(DF(), p));
  }
  for (size_t v = 0; v < kStripVecs; ++v) {
    const VF low = hn::Add(chain[v], chain[v + kStripVecs]);
    const VF high = hn::Add(chain[v + 2 * kStripVecs], chain[v + 3 * kStripVecs]);
    hn::Store(hn::Add(low, high), DF(), sum + v * kVecFloats);
  }
}

class Masses {
 public:
  explicit Masses(const QueryGroup& group)
      : group_(group),
        strips_per_block_(group.args.grid.block_tokens / kStripTokens),
        maxima_(group.memory.parts),
        parts_(maxima_ + ChunksOf(std::ssize(group.kv_blocks), group.args.grid) * group.size *
                             kStripTokens) {}

  // The exponentials of a chunk of kept blocks for the strip'th of the group, [tokens][16], and
  // their maximum.
  HWY_NOINLINE void Add(const Chunk& chunk, int64_t strip, const float* p,
                        const VF* maximum) const {
    float* const to = Maximum(chunk.first, strip);
    for (size_t v = 0; v < kStripVecs; ++v) hn::Store(maximum[v], DF(), to + v * kVecFloats);
    const int64_t end = chunk.first + static_cast<int64_t>(chunk.size);
    for (int64_t begin = chunk.first, part_end; begin < end; begin = part_end) {
      part_end = std::min(end, (begin / strips_per_block_ + 1) * strips_per_block_);
      const int64_t token = (begin - chunk.first) * kStripTokens;
      const int64_t tokens =
          std::min((part_end - begin) * kStripTokens, static_cast<int64_t>(chunk.tokens) - token);
      SumTokens(p + token * 16, tokens, Part(chunk.first, begin / strips_per_block_, strip));
    }
  }

  // Adds the masses of the strip'th of the group to its row's. The strips of a row come one after
  // the other, however they are grouped.
  HWY_NOINLINE void Finish(int64_t strip) const {
    const AttentionArgs& args = group_.args;
    const float* const maximum = group_.memory.maximum + strip * kStripTokens;
    const float* const sum = group_.memory.sum + strip * kStripTokens;
    const auto row = static_cast<size_t>(group_.row[strip]);
    const Range queries = args.grid.QBlockTokens(args.rows->rows[row].q_block);
    const auto kept = std::ssize(group_.kv_blocks);
    float* const masses = args.masses + args.rows->first[row];
    if (group_.FirstToken(strip) == queries.begin) std::fill_n(masses, kept, 0.0f);

    HWY_ALIGN float share[kStripTokens];  // of a query; those beyond the end have none
    for (int64_t t = 0; t < kStripTokens; ++t) {
      const bool counts = group_.FirstToken(strip) + t < queries.end && sum[t] != 0.0f;
      share[t] = counts ? 1.0f / (sum[t] * static_cast<float>(queries.size())) : 0.0f;
    }
    VF factor[kStripVecs];
    for (int64_t block = 0, chunk = -1; block < kept; ++block) {
      const int64_t begin = block * strips_per_block_;
      const int64_t end =
          begin +
          CeilDiv(args.grid.KvBlockTokens(group_.kv_blocks[static_cast<size_t>(block)]).size(),
                  kStripTokens);
      for (int64_t at = begin; at < end; at = (at / kChunkStrips + 1) * kChunkStrips) {
        if (at / kChunkStrips != chunk) {
          chunk = at / kChunkStrips;
          for (size_t v = 0; v < kStripVecs; ++v) {
            const VF then = hn::Load(DF(), Maximum(at, strip) + v * kVecFloats),
                     now = hn::Load(DF(), maximum + v * kVecFloats);
            factor[v] =
                hn::Mul(Exp2(DF(), hn::Sub(then, now)), hn::Load(DF(), share + v * kVecFloats));
          }
        }
        const float* const part = Part(at, block, strip);
        VF mass = hn::Mul(hn::Load(DF(), part), factor[0]);
        for (size_t v = 1; v < kStripVecs; ++v)
          mass = hn::MulAdd(hn::Load(DF(), part + v * kVecFloats), factor[v], mass);
        masses[block] += hn::GetLane(hn::SumOfLanes(DF(), mass));
      }
    }
  }

 private:
  // Of the chunk that holds a strip of the row's kept blocks.
  float* Maximum(int64_t kv_strip, int64_t strip) const {
    return maxima_ + (kv_strip / kChunkStrips * group_.size + strip) * kStripTokens;
  }
  // Of that chunk and a block, by its number in the row's list. From part to part the chunk, the
  // block or both go on by one, so their sum is a place of its own.
  float* Part(int64_t kv_strip, int64_t block, int64_t strip) const {
    return parts_ + ((kv_strip / kChunkStrips + block) * group_.size + strip) * kStripTokens;
  }

  const QueryGroup& group_;
  const int64_t strips_per_block_;
  float *const maxima_, *const parts_;
};

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_ATTENTION_MASSES_INL_H_

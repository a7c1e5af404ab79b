// The operands of int8 attention as AMX multiplies them: a chunk's keys and values are laid out
// anew, once for all query strips of a group, and their sums lie in memory before they become
// scores and outputs (attention_int-inl.h).
#if defined(EQUITILE_KERNEL_ATTENTION_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_ATTENTION_AMX_INL_H_
#undef EQUITILE_KERNEL_ATTENTION_AMX_INL_H_
#else
#define EQUITILE_KERNEL_ATTENTION_AMX_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "equitile/kernel/attention/attention_group.h"
#include "equitile/kernel/simd/amx_products-inl.h"
#include "equitile/kernel/simd/gemm-inl.h"
#include "equitile/kernel/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// A chunk that is multiplied by AMX: while it lives, its thread's registers are set up. Where a
// strip has fewer dims than a register, or a chunk fewer tokens, zeros stand here; what queries and
// weights have in their place does not matter then.
class AmxChunk {
 public:
  // memory: GroupMemory::wide.
  AmxChunk(const Chunk& chunk, int64_t head_dim, std::byte* memory)
      : strips_(chunk.size),
        dim_steps_(static_cast<size_t>(CeilDiv(head_dim, kDepth))),
        dim_groups_(static_cast<size_t>(CeilDiv(head_dim, 16))),
        token_steps_((chunk.size + kStepStrips - 1) / kStepStrips),
        keys_(memory),
        values_(keys_ + kChunkStrips * dim_steps_ * kAmxPanelBytes),
        sums_(reinterpret_cast<int32_t*>(values_ + dim_groups_ * kMostSteps * kAmxPanelBytes)) {
    for (size_t i = 0; i < strips_; ++i) PlaceKeys(chunk.k[i], PaddedDim(head_dim, kInt8), i);
    for (size_t step = 0; step < token_steps_; ++step) PlaceValues(chunk, step);
  }
  static constexpr int64_t Bytes(int64_t head_dim) {
    const int64_t registers = kChunkStrips * CeilDiv(head_dim, kDepth) +
                              static_cast<int64_t>(kMostSteps) * CeilDiv(head_dim, 16);
    return registers * static_cast<int64_t>(kAmxPanelBytes) +
           static_cast<int64_t>(kAmxSums * sizeof(int32_t));
  }

  // Keys times kStrips strips of queries, query_bytes apart, strip by strip of keys. begin: what
  // sums begin at, [kStrips][16].
  template <size_t kStrips>
  auto ScoreSums(const std::byte* queries, size_t query_bytes, const int32_t* begin) const {
    return AmxSums<ByteSigns::kPanels, 1, kStrips, Scores>({*this, queries, query_bytes, begin},
                                                           registers_, sums_);
  }
  // Values times the weights of kStrips strips, kChunkFloats apart, 16 dims by 16 dims.
  template <size_t kStrips>
  auto OutputSums(const float* weights) const {
    return AmxSums<ByteSigns::kRows, 1, kStrips, Outputs>({*this, weights}, registers_, sums_);
  }

 private:
  // For AmxSums.
  struct Scores {
    const AmxChunk& chunk;
    const std::byte* queries;
    size_t query_bytes;
    const int32_t* begin;

    size_t Groups() const { return chunk.strips_; }
    size_t Steps() const { return chunk.dim_steps_; }
    static constexpr size_t RowStride() { return kAmxDepth; }
    const std::byte* Rows(size_t strip, size_t step) const {
      return chunk.keys_ + (strip * chunk.dim_steps_ + step) * kAmxPanelBytes;
    }
    const std::byte* Panel(size_t strip, size_t step) const {
      return queries + strip * query_bytes + step * kAmxPanelBytes;
    }
    const int32_t* Begin(size_t strip) const { return begin + strip * kStripTokens; }
  };
  struct Outputs {
    const AmxChunk& chunk;
    const float* weights;  // words

    size_t Groups() const { return chunk.dim_groups_; }
    size_t Steps() const { return chunk.token_steps_; }
    static constexpr size_t RowStride() { return kAmxDepth; }
    const std::byte* Rows(size_t group, size_t step) const {
      return chunk.values_ + (group * chunk.token_steps_ + step) * kAmxPanelBytes;
    }
    const std::byte* Panel(size_t strip, size_t step) const {
      return reinterpret_cast<const std::byte*>(weights + strip * kChunkFloats) +
             step * kAmxPanelBytes;
    }
    static const int32_t* Begin(size_t) { return nullptr; }
  };

  static constexpr Compute kInt8 = Compute::kInt8;
  static constexpr int64_t kDepth = kAmxDepth;
  static constexpr size_t kStepStrips = kAmxDepth / kStripTokens;
  static constexpr size_t kMostSteps = kChunkStrips / kStepStrips;

  // [dims / 32][16][32] -> [dims / 64][16][64].
  void PlaceKeys(const std::byte* strip, int64_t padded, size_t i) const {
    std::byte* const to = keys_ + i * dim_steps_ * kAmxPanelBytes;
    for (size_t half = 0; half < 2 * dim_steps_; ++half) {
      std::byte* const place = to + half / 2 * kAmxPanelBytes + half % 2 * 32;
      const bool is_there = static_cast<int64_t>(half) * 32 < padded;
      for (size_t t = 0; t < 16; ++t) {
        if (is_there) {
          std::copy_n(strip + half * 512 + t * 32, 32, place + t * kAmxDepth);
        } else {
          std::fill_n(place + t * kAmxDepth, 32, std::byte{0});
        }
      }
    }
  }

  // [dims / 16][tokens / 4][16][4] of four strips -> [dims / 16][16][64 tokens].
  void PlaceValues(const Chunk& chunk, size_t step) const {
    alignas(64) static constexpr float kZeros[16] = {};
    for (size_t g = 0; g < dim_groups_; ++g) {
      const float* rows[16];
      for (size_t i = 0; i < 16; ++i) {
        const size_t strip = step * kStepStrips + i / 4;
        rows[i] = strip < strips_
                      ? reinterpret_cast<const float*>(chunk.v[strip]) + g * 64 + i % 4 * 16
                      : kZeros;
      }
      std::byte* const to = values_ + (g * token_steps_ + step) * kAmxPanelBytes;
      RowsToColumns(rows, 16, reinterpret_cast<float*>(to));  // moves words, whatever they are
    }
  }

  const size_t strips_, dim_steps_, dim_groups_, token_steps_;
  std::byte *const keys_, *const values_;
  int32_t* const sums_;
  mutable AmxRegisters registers_;
};

// It takes the place of strips that are widened.
constexpr bool AmxChunksFit() {
  for (int64_t head_dim = kHeadDimStep; head_dim <= kMaxHeadDim; head_dim += kHeadDimStep) {
    if (AmxChunk::Bytes(head_dim) > 2 * kChunkStrips * WideStripPitch(head_dim)) return false;
  }
  return true;
}
static_assert(AmxChunksFit());

// In place of it with other instructions.
struct NoAmxChunk {
  struct Sums {
    static const int32_t* Of(size_t) { return nullptr; }
  };
  NoAmxChunk(const Chunk&, int64_t, std::byte*) {}
  template <size_t>
  Sums ScoreSums(const std::byte*, size_t, const int32_t*) const {
    return {};
  }
  template <size_t>
  Sums OutputSums(const float*) const {
    return {};
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_ATTENTION_AMX_INL_H_

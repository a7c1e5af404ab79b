// Touching what a thread of the attention kernel reads next, while it multiplies.
#if defined(EQUITILE_KERNEL_ATTENTION_TOUCHER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_ATTENTION_TOUCHER_INL_H_
#undef EQUITILE_KERNEL_ATTENTION_TOUCHER_INL_H_
#else
#define EQUITILE_KERNEL_ATTENTION_TOUCHER_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "equitile/kernel/attention/attention_group.h"
#include "equitile/kernel/attention/next_reads.h"
#include "equitile/kernel/simd/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

inline constexpr size_t kStripTiles =
    (16 + kTileRows - 1) / kTileRows;  // register tiles of 16 rows

// Goes through a part of packed strips, a line or so per 16 steps over k: one at a time they go
// unnoticed, a dozen at once would hold up the loads that are waited for.
class LineToucher {
 public:
  LineToucher(const std::byte* at, size_t step) : at_(at), step_(step) {}
  // kNumbers: in the place of a float, of which there are fewer lines then.
  template <size_t kNumbers = 1>
  EQ_TILE void Step() {
    EQ_UNROLL
    for (size_t i = 0; i < HWY_MAX(size_t{1}, kLines / kNumbers); ++i)
      __builtin_prefetch(at_ + 64 * i, 0, 2);
    at_ += step_;
  }

  // What four query strips need in f32, or nearly (a block of 64).
  static constexpr size_t kLines = HWY_MAX(size_t{1}, 16 / (kStripTiles * (4 / kTileStrips)));

 private:
  const std::byte* at_;
  size_t step_;  // bytes
};

// Touches what the thread reads next, while the passes of a group over a chunk multiply.
class Toucher {
 public:
  // passes: query strips, or pairs of them, that share the work; strip_tiles: register tiles of a
  // strip's 16 tokens in each.
  Toucher(const NextReads& next, const Chunk& chunk, size_t passes, size_t strip_tiles,
          const AttentionArgs& args)
      : passes_(passes),
        strip_bytes_(static_cast<size_t>(StripBytes(args.head_dim, args.compute))),
        step_(StepBytes(strip_tiles, args)),
        row_(next.rows.data()),
        rows_end_(row_ + next.rows.size()),
        row_bytes_(next.row_bytes),
        strips_(next.strips > 0 ? next.strips : 1),
        key_share_(strips_ * strip_bytes_ / (chunk.size * passes)),
        value_share_(strips_ * strip_bytes_ / (Groups(args.head_dim) * passes)),
        per_strip_((size_t{1} << kInverseBits) / strip_bytes_ + 1),
        k_(next.strips > 0 ? next.k : chunk.k),
        v_(next.strips > 0 ? next.v : chunk.v) {
    const auto tiles =
        static_cast<int64_t>(passes * strip_tiles * (chunk.size + Groups(args.head_dim)));
    const int64_t lines = std::ssize(next.rows) * CeilDiv(row_bytes_, kLineBytes);
    lines_per_tile_ = CeilDiv(lines, tiles);
  }

  void NextPass() { ++pass_; }

  // Once per register tile: rows.
  void Tile() {
    for (int64_t i = 0; i < lines_per_tile_ && row_ != rows_end_; ++i) {
      __builtin_prefetch(static_cast<const char*>(*row_) + offset_, 0, 2);
      offset_ += kLineBytes;
      if (offset_ >= row_bytes_) {
        ++row_;
        offset_ = 0;
      }
    }
  }

  // The lines of a strip's part of this pass; of those of a group of 16 dims.
  LineToucher Keys(size_t strip) const { return Lines(k_, strip, key_share_); }
  LineToucher Values(size_t group) const { return Lines(v_, group, value_share_); }

 private:
  static constexpr int64_t kLineBytes = 64;
  static constexpr int kInverseBits = 40;  // exact for all bytes of a chunk

  static size_t Groups(int64_t head_dim) { return static_cast<size_t>(CeilDiv(head_dim, 16)); }

  // From step to step over k, of 16 dims or a strip: what makes a pass touch its share. Smaller
  // than a line it touches some twice.
  size_t StepBytes(size_t strip_tiles, const AttentionArgs& args) const {
    const size_t share = strip_bytes_ / (strip_tiles * passes_ * Groups(args.head_dim));
    return args.compute == Compute::kF32 ? HWY_MAX(64 * LineToucher::kLines, share) : share;
  }

  // Without dividing: that takes as long as a strip of bytes is multiplied.
  LineToucher Lines(const std::byte* const* strips, size_t part, size_t share) const {
    const size_t at = (part * passes_ + pass_) * share;
    const size_t strip = at * per_strip_ >> kInverseBits;
    return LineToucher(strips[strip] + (at - strip * strip_bytes_), step_);
  }

  const size_t passes_, strip_bytes_, step_;
  size_t pass_ = 0;
  const void* const* row_;
  const void* const* const rows_end_;
  const int64_t row_bytes_;
  int64_t offset_ = 0, lines_per_tile_ = 0;
  const size_t strips_;
  const size_t key_share_, value_share_;  // bytes of a part in one pass
  const size_t per_strip_;                // 2^kInverseBits / strip_bytes_, from above
  const std::byte* const* const k_;
  const std::byte* const* const v_;
};

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_ATTENTION_TOUCHER_INL_H_

// int8 linear layers as AMX multiplies them: sums of 16 tokens lie in memory before they become
// floats. All else (linear_tile.cc) is the same as with other instructions.
#if defined(EQUITILE_KERNEL_LINEAR_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_LINEAR_AMX_INL_H_
#undef EQUITILE_KERNEL_LINEAR_AMX_INL_H_
#else
#define EQUITILE_KERNEL_LINEAR_AMX_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "equitile/kernel/linear/linear_operands-inl.h"
#include "equitile/kernel/simd/amx_products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// Rounded rows and packed panels are what AMX multiplies, and are read where they lie.
struct AmxInt8Operand {
  using Math = PairMath;  // of sums
  static constexpr bool kRounded = true, kOffsetRows = false, kSummedBefore = true;

  static size_t Words(const DepthPiece& piece) { return VnniInt8Operand::Words(piece); }
  static void PackRows(const LinearTile&, const DepthPiece&, int32_t*) {}
  static PanelWords<int32_t> Panels(const PackedLinear& weights, const PanelColumns* panels,
                                    size_t strips, const DepthPiece& piece, const NextPanels& next,
                                    int32_t* scratch) {
    return VnniInt8Operand::Panels(weights, panels, strips, piece, next, scratch);
  }
};

// Of a thread, in its scratch.
struct AmxLinearMemory {
  int32_t sums[kAmxSums];
  std::byte panel_ends[kAmxStrips][kAmxPanelBytes];
};

// The operands of a tile over one piece of `strips` panels, tokens in groups of 16 (AmxSums). Where
// fewer are left, the last group begins among those before it: sums that come twice are the same.
// Registers have fewer rows where the tile has fewer tokens.
class AmxLinearOperands {
 public:
  AmxLinearOperands(const LinearTile& tile, const DepthPiece& piece,
                    const PanelWords<int32_t>& words, size_t strips, AmxLinearMemory& memory)
      : rows_(static_cast<const std::byte*>(tile.rows) + piece.x),
        row_stride_(static_cast<size_t>(tile.row_stride)),
        tokens_(static_cast<size_t>(tile.tokens.size())),
        steps_(AmxInt8Operand::Words(piece) / kGroupWords) {
    // What is left of the inputs: rows end in zeros, but a panel where the next one begins.
    const size_t end_words = AmxInt8Operand::Words(piece) - steps_ * kGroupWords;
    const size_t end_bytes = end_words * kStripFloats * sizeof(int32_t);
    has_end_ = end_words > 0;
    for (size_t s = 0; s < strips; ++s) {
      panels_[s] = reinterpret_cast<const std::byte*>(words.panels + s * words.stride);
      ends_[s] = memory.panel_ends[s];
      if (!has_end_) continue;
      std::memcpy(memory.panel_ends[s], panels_[s] + steps_ * kAmxPanelBytes, end_bytes);
      std::memset(memory.panel_ends[s] + end_bytes, 0, kAmxPanelBytes - end_bytes);
    }
  }

  size_t Groups() const { return (tokens_ + kAmxRows - 1) / kAmxRows; }
  size_t Steps() const { return steps_ + has_end_; }
  size_t RowStride() const { return row_stride_; }
  const std::byte* Rows(size_t group, size_t step) const {
    return rows_ + FirstToken(group) * row_stride_ + step * kAmxDepth;
  }
  const std::byte* Panel(size_t strip, size_t step) const {
    return HWY_LIKELY(step < steps_) ? panels_[strip] + step * kAmxPanelBytes : ends_[strip];
  }
  static const int32_t* Begin(size_t) { return nullptr; }

  // Of a group's sums.
  size_t FirstToken(size_t group) const {
    return std::min(group * kAmxRows, tokens_ - std::min(tokens_, kAmxRows));
  }

 private:
  const std::byte* const rows_;
  const size_t row_stride_, tokens_, steps_;
  bool has_end_;
  const std::byte *panels_[kAmxStrips], *ends_[kAmxStrips];
};

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_LINEAR_AMX_INL_H_

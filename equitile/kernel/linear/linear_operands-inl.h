// What a linear layer multiplies: how rows and panels of each type of weights become words of the
// register tile, and how its sums become floats. All else (linear_tile.cc) is the same for all.
#if defined(EQUITILE_KERNEL_LINEAR_OPERANDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_LINEAR_OPERANDS_INL_H_
#undef EQUITILE_KERNEL_LINEAR_OPERANDS_INL_H_
#else
#define EQUITILE_KERNEL_LINEAR_OPERANDS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "equitile/kernel/linear/linear_tile.h"
#include "equitile/kernel/simd/gemm-inl.h"
#include "equitile/kernel/simd/integer_products-inl.h"
#include "equitile/kernel/simd/pack-inl.h"
#include "hwy/highway.h"

#ifndef EQUITILE_KERNEL_LINEAR_OPERANDS_ONCE_
#define EQUITILE_KERNEL_LINEAR_OPERANDS_ONCE_
namespace equitile {

inline constexpr size_t kGroupWords = 16;  // a token's words that lie side by side

// Rows of a piece lie in such groups, [group][token][16]. With a few more places than tokens the
// groups of a register tile spread over the sets of L1, beside the panel.
inline constexpr size_t kRowPitch = kTileTokens + 6;
inline constexpr size_t kPieceRows = kPieceDepth * kRowPitch;
inline constexpr size_t kPanelPiece = kPieceDepth * kPanelColumns;
static_assert(kPieceDepth % kGroupWords == 0);

}  // namespace equitile
#endif  // EQUITILE_KERNEL_LINEAR_OPERANDS_ONCE_

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Panels as the register tile reads them.
template <typename T>
struct PanelWords {
  const T* panels = nullptr;  // [words][16], `stride` apart
  size_t stride = 0;
  const T* ahead = nullptr;  // what comes next, to be fetched, ahead_stride apart
  size_t ahead_stride = 0;
};

// Where the panels lie that come after some.
struct NextPanels {
  const PanelColumns* panels = nullptr;
  int64_t depth = 0;  // where their piece begins
};

// Panels whose words are read where they lie; kInputs: per word.
template <typename T, int64_t kInputs>
HWY_INLINE PanelWords<T> PanelsInPlace(const PackedLinear& weights, const PanelColumns* panels,
                                       size_t strips, int64_t depth, const NextPanels& next) {
  const auto at = [&](const PanelColumns& columns, int64_t input) {
    return static_cast<const T*>(weights.Panel(columns.panel)) + input / kInputs * kPanelColumns;
  };
  PanelWords<T> words;
  words.panels = at(panels[0], depth);
  words.stride = static_cast<size_t>(at(panels[strips - 1], depth) - words.panels);
  words.ahead = at(next.panels[0], next.depth);
  words.ahead_stride = words.stride;
  return words;
}

// Panels that are widened into scratch. What comes next has another size, and is read by the
// widening.
template <typename T>
HWY_INLINE PanelWords<T> PanelsInScratch(const T* scratch) {
  return {scratch, kPanelPiece, scratch, kPanelPiece};
}

// One token's inputs to their places among the groups of 16.
template <class From>
HWY_INLINE void PackFloatRow(const From* from, int64_t stride, size_t depth, float* to) {
  size_t d = 0;
  for (; d + kGroupWords <= depth; d += kGroupWords, to += kRowPitch * kGroupWords)
    GatherFloats(from + static_cast<int64_t>(d) * stride, stride, kGroupWords, to);
  GatherFloats(from + static_cast<int64_t>(d) * stride, stride, depth - d, to);
}

template <class From>
void PackFloatRows(const From* from, int64_t row_stride, int64_t stride, size_t tokens,
                   size_t depth, float* to) {
  for (size_t token = 0; token < tokens; ++token, from += row_stride, to += kGroupWords)
    PackFloatRow(from, stride, depth, to);
}

// f32, and bf16 that is widened piece by piece. Words are floats.
struct FloatOperand {
  using Math = FloatMath;
  static constexpr bool kRounded = false, kSummedBefore = false;

  static size_t Words(const DepthPiece& piece) { return static_cast<size_t>(piece.inputs.size()); }

  static void PackRows(const LinearTile& tile, const DepthPiece& piece, float* to) {
    const ConstView& x = tile.args->x.view;
    const auto tokens = static_cast<size_t>(tile.tokens.size()), n = Words(piece);
    if (n == 0) return;
    if (tile.rows != nullptr) {
      return PackFloatRows(static_cast<const float*>(tile.rows) + piece.x, tile.row_stride, 1,
                           tokens, n, to);
    }
    const void* from = x.Address(tile.tokens.begin, piece.x);
    const int64_t row_stride = x.Stride(0), stride = x.Stride(1);
    switch (x.dtype()) {
      case DType::kF32:
        return PackFloatRows(static_cast<const float*>(from), row_stride, stride, tokens, n, to);
      case DType::kBF16:
        return PackFloatRows(static_cast<const Bf16*>(from), row_stride, stride, tokens, n, to);
      case DType::kF16:
        return PackFloatRows(static_cast<const F16*>(from), row_stride, stride, tokens, n, to);
    }
  }

  static PanelWords<float> Panels(const PackedLinear& weights, const PanelColumns* panels,
                                  size_t strips, const DepthPiece& piece, const NextPanels& next,
                                  float* scratch) {
    const int64_t begin = piece.inputs.begin;
    if (weights.type() == WeightType::kF32)
      return PanelsInPlace<float, 1>(weights, panels, strips, begin, next);
    for (size_t s = 0; s < strips; ++s) {
      ToFloats(static_cast<const Bf16*>(weights.Panel(panels[s].panel)) + begin * kPanelColumns,
               Words(piece) * kPanelColumns, scratch + s * kPanelPiece);
    }
    return PanelsInScratch(scratch);
  }
};

// Rounded rows of a tile in groups; pack(from, to) makes one group of words of kInputs each.
template <size_t kInputs, typename Number, class Pack>
HWY_INLINE void PackGroups(const LinearTile& tile, const DepthPiece& piece, int32_t* to,
                           const Pack& pack) {
  const auto* from = static_cast<const Number*>(tile.rows) + piece.x;
  const auto inputs = static_cast<size_t>(piece.inputs.size());
  for (int64_t token = 0; token < tile.tokens.size(); ++token, from += tile.row_stride) {
    int32_t* group = to + static_cast<size_t>(token) * kGroupWords;
    for (size_t i = 0; i < inputs; i += kGroupWords * kInputs, group += kRowPitch * kGroupWords)
      pack(from + i, group);
  }
}

// Words of two int16, in rows and panels alike.
template <class PairsMath>
struct Int16Operand {
  using Math = PairsMath;
  static constexpr bool kRounded = true, kOffsetRows = false, kSummedBefore = false;

  static size_t Words(const DepthPiece& piece) {
    return static_cast<size_t>(CeilDiv(piece.inputs.size(), 2));
  }

  static void PackRows(const LinearTile& tile, const DepthPiece& piece, int32_t* to) {
    PackGroups<2, int16_t>(tile, piece, to, [](const int16_t* from, int32_t* group) {
      std::memcpy(group, from, kGroupWords * sizeof(int32_t));
    });
  }

  static PanelWords<int32_t> Panels(const PackedLinear& weights, const PanelColumns* panels,
                                    size_t strips, const DepthPiece& piece, const NextPanels& next,
                                    int32_t*) {
    return PanelsInPlace<int32_t, 2>(weights, panels, strips, piece.inputs.begin, next);
  }
};

// int8 as words of two int16, on targets without products of bytes. A group of 16 words is 8 quads
// of inputs: 8 words of their even ones, then 8 of their odd ones.
struct WidenedInt8Operand {
  using Math = PairMath;
  static constexpr bool kRounded = true, kOffsetRows = false, kSummedBefore = false;
  static constexpr size_t kGroupQuads = kGroupWords / 2;

  static size_t Quads(const DepthPiece& piece) {
    return static_cast<size_t>(CeilDiv(piece.inputs.size(), 4));
  }
  // Whole groups: what is beyond the last input is 0.
  static size_t Words(const DepthPiece& piece) {
    return (Quads(piece) + kGroupQuads - 1) / kGroupQuads * kGroupWords;
  }

  static void PackRows(const LinearTile& tile, const DepthPiece& piece, int32_t* to) {
    using D = hn::CappedTag<int32_t, kGroupQuads>;
    PackGroups<2, int8_t>(tile, piece, to, [](const int8_t* from, int32_t* group) {
      const D d;
      for (size_t q = 0; q < kGroupQuads; q += hn::Lanes(d)) {
        const auto words = WidenQuads(d, hn::LoadU(d, reinterpret_cast<const int32_t*>(from) + q));
        hn::StoreU(words.even, d, group + q);
        hn::StoreU(words.odd, d, group + kGroupQuads + q);
      }
    });
  }

  static PanelWords<int32_t> Panels(const PackedLinear& weights, const PanelColumns* panels,
                                    size_t strips, const DepthPiece& piece, const NextPanels&,
                                    int32_t* scratch) {
    for (size_t s = 0; s < strips; ++s) {
      const auto* from = static_cast<const int32_t*>(weights.Panel(panels[s].panel)) +
                         piece.inputs.begin / 4 * kPanelColumns;
      WidenPanel(from, Quads(piece), scratch + s * kPanelPiece);
    }
    return PanelsInScratch(scratch);
  }

 private:
  static void WidenPanel(const int32_t* from, size_t quads, int32_t* to) {
    for (size_t q = 0; q < quads; q += kGroupQuads, to += kGroupWords * kStripFloats) {
      for (size_t i = 0; i < kGroupQuads; ++i) {
        for (size_t v = 0; v < kStripFloats; v += kVecFloats) {
          const VI four =
              q + i < quads ? hn::LoadU(DI(), from + (q + i) * kStripFloats + v) : hn::Zero(DI());
          const auto words = WidenQuads(DI(), four);
          hn::StoreU(words.even, DI(), to + i * kStripFloats + v);
          hn::StoreU(words.odd, DI(), to + (kGroupQuads + i) * kStripFloats + v);
        }
      }
    }
  }
};

// Words of four int8. VNNI's products want rows without signs: they are rows + 128, and the sums
// begin at what that adds.
struct VnniInt8Operand {
  using Math = UnsignedRowsMath;
  static constexpr bool kRounded = true, kOffsetRows = true, kSummedBefore = false;

  static size_t Words(const DepthPiece& piece) {
    return static_cast<size_t>(CeilDiv(piece.inputs.size(), 4));
  }

  static void PackRows(const LinearTile& tile, const DepthPiece& piece, int32_t* to) {
    const DI d;
    const VI offset = hn::Set(d, static_cast<int32_t>(0x80808080u));
    PackGroups<4, int8_t>(tile, piece, to, [&](const int8_t* from, int32_t* group) {
      for (size_t w = 0; w < kGroupWords; w += kVecFloats) {
        const VI quads = hn::LoadU(d, reinterpret_cast<const int32_t*>(from) + w);
        hn::StoreU(hn::Xor(quads, offset), d, group + w);
      }
    });
  }

  static PanelWords<int32_t> Panels(const PackedLinear& weights, const PanelColumns* panels,
                                    size_t strips, const DepthPiece& piece, const NextPanels& next,
                                    int32_t*) {
    return PanelsInPlace<int32_t, 4>(weights, panels, strips, piece.inputs.begin, next);
  }

  // What 128 times the weights of a piece add up to, [16].
  static void SumsOfOffset(const PackedLinear& weights, int64_t panel, const DepthPiece& piece,
                           int32_t* to) {
    const int32_t* sums = weights.PartSums(panel, piece.inputs.begin / PartInputs(Compute::kInt8));
    for (int64_t c = 0; c < kPanelColumns; ++c) to[c] = 128 * sums[c];
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_LINEAR_OPERANDS_INL_H_

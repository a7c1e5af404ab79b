// The register tiles of integer attention: sums of products become z, or outputs.
#if defined(EQUITILE_KERNEL_ATTENTION_INT_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_ATTENTION_INT_TILES_INL_H_
#undef EQUITILE_KERNEL_ATTENTION_INT_TILES_INL_H_
#else
#define EQUITILE_KERNEL_ATTENTION_INT_TILES_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "equitile/kernel/attention/attention_group.h"
#include "equitile/kernel/attention/attention_short_weights-inl.h"
#include "equitile/kernel/attention/attention_toucher-inl.h"
#include "equitile/kernel/simd/amx_products-inl.h"
#include "equitile/kernel/simd/gemm-inl.h"
#include "equitile/kernel/simd/integer_products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// The rows of a tile. A product is two instructions with a short chain (the addition), so few rows
// are enough; on AVX2 four rows run at 1.62 to 1.67 times the f32 tile, five at 1.53, six at 1.36
// (registers are spilled), three rows of two strips at 1.1.
#if HWY_TARGET == HWY_AVX3
inline constexpr size_t kIntTileRows = 8;
inline constexpr size_t kIntTileStrips = 2;
#else
inline constexpr size_t kIntTileRows = HWY_MIN(kTileRows, size_t{4});
inline constexpr size_t kIntTileStrips = 1;
#endif

// Calls body.Rows<n>(first_row) for n = kIntTileRows as far as they fit, then for single rows.
template <class Body>
HWY_INLINE void ForIntRows(size_t rows, const Body& body) {
  size_t row = 0;
  for (; row + kIntTileRows <= rows; row += kIntTileRows) body.template Rows<kIntTileRows>(row);
  if constexpr (kIntTileRows > 1) {
    for (; row < rows; ++row) body.template Rows<1>(row);
  }
}

// Whether a tile's rows can be words of two keys, 0 and 2, 1 and 3 of every four (ShortPair).
inline constexpr bool kShorts = kIntTileRows % 4 == 0;

// Sums of products that begin at the bits of this float are floats: it plus the sum, while that is
// below 2^22. So they need no conversion.
inline constexpr float kFloatSum = 12582912.0f;
constexpr bool SumsAreFloats(int64_t head_dim, Compute compute) {
  return compute == Compute::kInt8 && head_dim * 127 * 127 < 1 << 22;
}

// z[token][16 queries] of a key strip for kStrips query strips, and the largest of each query.
// kToShorts: in steps, two keys to a word (WeightsOfShorts).
template <class Products, size_t kStrips, bool kToShorts>
struct IntScoreTile {
  using Math = typename Products::Keys;

  const int32_t* k;  // key strip; of AMX its sums with the queries, [kStrips][16][16]
  const int32_t* q;  // query strips, q_stride words apart
  float* z;          // of this key strip
  const float *key_scale, *key_offset, *log2_value;
  const VF* query_scale;  // [kStrips * kStripVecs]
  VF* maximum;
  const VI* begin;          // [kStrips * kStripVecs] what sums begin at
  size_t q_stride, groups;  // groups of eight words
  bool float_sums;          // see kFloatSum
  Toucher* touch;
  LineToucher* lines;

  template <size_t kRows>
  EQ_TILE void Rows(size_t row) const {
    touch->Tile();
    Tile<kRows, kStrips, Math> tile;
    LineToucher here = *lines;
    if constexpr (Products::kSummedBefore) {
      tile.Load(k + row * 16, 16, kAmxStripSums);
      for (size_t g = 0; g < groups; ++g) Touch(here);
    } else {
      EQ_UNROLL
      for (size_t r = 0; r < kRows; ++r) {
        EQ_UNROLL
        for (size_t v = 0; v < tile.kVecs; ++v) tile.c[r][v] = begin[v];
      }
      const int32_t *a = k + row * 8, *panel = q;
      for (size_t g = 0; g < groups; ++g, a += 128, panel += 128) {
        Touch(here);
        tile.template MultiplyAddFixed<AOrder::kRowMajor, 8, 8>(a, panel, q_stride);
      }
    }
    *lines = here;
    if (float_sums) {
      Finish(row, tile, [](VI sum, VF scale, VF offset) {
        return hn::MulAdd(hn::BitCast(DF(), sum), scale, offset);
      });
    } else {
      Finish(row, tile,
             [](VI sum, VF scale, VF) { return hn::Mul(hn::ConvertTo(DF(), sum), scale); });
    }
  }

 private:
  // The share of eight words of dims.
  static EQ_TILE void Touch(LineToucher& here) {
    for (size_t dims = 0; dims < 8 * Math::kNumbers; dims += 16)
      here.template Step<Math::kNumbers>();
  }

  // Sums become z; scaled(sum, scale of the key, its offset).
  template <size_t kRows, class Scaled>
  EQ_TILE void Finish(size_t row, const Tile<kRows, kStrips, Math>& tile,
                      const Scaled& scaled) const {
    // From one place each: from `row` on, compilers compute every address anew.
    const float *const scales = key_scale + row, *const offsets = key_offset + row;
    const float* const adds = log2_value + row;
    float* const to = z + row * (kToShorts ? 8 : 16);
    VF m[tile.kVecs];
    EQ_UNROLL
    for (size_t v = 0; v < tile.kVecs; ++v) m[v] = maximum[v];
    const auto log2_weight = [&](size_t r, size_t v) HWY_ATTR {
      const VF x = scaled(tile.c[r][v], hn::Set(DF(), scales[r]), hn::Set(DF(), offsets[r]));
      const VF result = hn::MulAdd(x, query_scale[v], hn::Set(DF(), adds[r]));
      m[v] = hn::Max(m[v], result);
      return result;
    };
    const auto place = [&](size_t row_of, size_t v) {
      return to + (v / kStripVecs) * kChunkFloats + row_of * 16 + v % kStripVecs * kVecFloats;
    };
    EQ_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      EQ_UNROLL
      for (size_t v = 0; v < tile.kVecs; ++v) {
        if constexpr (kToShorts) {
          if (r % 4 >= 2) continue;
          const VI word = ShortPair(log2_weight(r, v), log2_weight(r + 2, v));
          hn::Store(hn::BitCast(DF(), word), DF(), place(r / 4 * 2 + r % 2, v));
        } else {
          hn::Store(log2_weight(r, v), DF(), place(r, v));
        }
      }
    }
    EQ_UNROLL
    for (size_t v = 0; v < tile.kVecs; ++v) maximum[v] = m[v];
  }
};

// o[dim][16 queries] = o * factor + V^T P * share for 16 dims.
template <class Products, size_t kStrips>
struct IntOutputTile {
  using Math = typename Products::Values;

  const int32_t* const* v;  // value strips, at these dims; of AMX unused
  size_t strips;
  const int32_t*
      p;     // weights, kChunkFloats words from strip to strip; of AMX [kStrips][16][16] sums
  float* o;  // at these dims, o_stride floats from strip to strip
  const VF* factor;  // null: the output so far is 0
  const VF* share;
  size_t o_stride;
  Toucher* touch;
  LineToucher* lines;

  template <size_t kRows>
  EQ_TILE void Rows(size_t row) const {
    touch->Tile();
    Tile<kRows, kStrips, Math> tile;
    LineToucher here = *lines;
    if constexpr (Products::kSummedBefore) {
      tile.Load(p + row * 16, 16, kAmxStripSums);
      for (size_t i = 0; i < strips; ++i) here.template Step<Math::kNumbers>();
    } else {
      tile.Zero();
      Multiply(row, tile, here);
    }
    *lines = here;
    factor != nullptr ? Finish<true>(row, tile) : Finish<false>(row, tile);
  }

 private:
  template <size_t kRows>
  EQ_TILE void Multiply(size_t row, Tile<kRows, kStrips, Math>& tile, LineToucher& here) const {
    constexpr size_t kWords = 16 / Math::kNumbers;
    const int32_t* panel = p;
    for (size_t i = 0; i < strips; ++i, panel += 16 * kWords) {
      here.template Step<Math::kNumbers>();
      const int32_t* const a = v[i] + row;
      // The lines of the next 16 dims are not where the processor expects them: after those of
      // other strips. The tiles of these share them.
      EQ_UNROLL
      for (size_t line = 0; line < kWords * kRows / 16; ++line)
        __builtin_prefetch(a + (kWords + kWords * kRows / 16 * (row / kRows) + line) * 16, 0, 3);
      tile.template MultiplyAddFixed<AOrder::kColumnMajor, 16, kWords>(a, panel, kChunkFloats);
    }
  }

  template <bool kAdd, size_t kRows>
  EQ_TILE void Finish(size_t row, const Tile<kRows, kStrips, Math>& tile) const {
    float* const to = o + row * 16;
    EQ_UNROLL
    for (size_t c = 0; c < tile.kVecs; ++c) {
      const VF unit = share[c], before = kAdd ? factor[c] : unit;
      EQ_UNROLL
      for (size_t r = 0; r < kRows; ++r) {
        float* const at = to + (c / kStripVecs) * o_stride + r * 16 + c % kStripVecs * kVecFloats;
        VF sum = hn::Mul(hn::ConvertTo(DF(), tile.c[r][c]), unit);
        if constexpr (kAdd) sum = hn::MulAdd(hn::Load(DF(), at), before, sum);
        hn::Store(sum, DF(), at);
      }
    }
  }
};

// How keys meet queries, and values weights. kSummedBefore: in tiles of AMX, before a register tile
// takes the sums up.
struct PairProducts {
  static constexpr bool kSummedBefore = false;
  using Keys = PairMath;
  using Values = PairMath;
  using Sums = PairMath;
};
struct VnniPairProducts {
  static constexpr bool kSummedBefore = false;
  using Keys = VnniPairMath;
  using Values = VnniPairMath;
};
struct QuadProducts {
  static constexpr bool kSummedBefore = false;
  using Keys = UnsignedRowsMath;
  using Values = UnsignedPanelsMath;
  using Sums = VnniPairMath;
};
struct AmxProducts : QuadProducts {
  static constexpr bool kSummedBefore = true;
};

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_ATTENTION_INT_TILES_INL_H_

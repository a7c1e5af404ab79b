// The register tile of integers: C[rows][16 s] += A[rows][words] * panels[s][words][16], where a
// word holds several integers and a product of words is their dot product (gemm-inl.h has the same
// for floats). Sums are exact, so no shape, order or instruction changes a bit.
#if defined(EQUITILE_KERNEL_INT_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_INT_TILE_INL_H_
#undef EQUITILE_KERNEL_INT_TILE_INL_H_
#else
#define EQUITILE_KERNEL_INT_TILE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "equitile/kernel/gemm-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;

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

// Keeps a compiler from adding the products of an unrolled loop to each other first: it knows that
// it may, and runs out of registers (AVX2: 1.39 instead of 1.6 times the f32 tile).
HWY_INLINE void KeepOrder(VI& sum) {
#if HWY_TARGET == HWY_AVX3
  asm("" : "+v"(sum.raw));
#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
  asm("" : "+x"(sum.raw));
#else
  (void)sum;
#endif
}

// Words of two int16.
struct PairDot {
  // c + a0 b0 + a1 b1 in each word.
  static HWY_INLINE VI Add(VI c, VI a, VI b) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
    const hn::Repartition<int16_t, DI> d16;
    VI none = hn::Zero(DI());
    return hn::ReorderWidenMulAccumulate(DI(), hn::BitCast(d16, a), hn::BitCast(d16, b), c, none);
#else
    const VI low =
        hn::Mul(hn::ShiftRight<16>(hn::ShiftLeft<16>(a)), hn::ShiftRight<16>(hn::ShiftLeft<16>(b)));
    const VI high = hn::Mul(hn::ShiftRight<16>(a), hn::ShiftRight<16>(b));
    return hn::Add(c, hn::Add(low, high));
#endif
  }
};

template <class Dot, size_t kRows, size_t kStrips>
struct IntTile {
  static constexpr size_t kVecs = kStrips * kStripVecs;
  VI c[kRows][kVecs];

  EQ_TILE void Zero() {
    EQ_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      EQ_UNROLL
      for (size_t v = 0; v < kVecs; ++v) c[r][v] = hn::Zero(DI());
    }
  }

  // kWords words of depth: A(r, w) lies at a[r * kRowStride + w * kWordStride], panel s at panel +
  // s * panel_stride.
  template <size_t kRowStride, size_t kWordStride, size_t kWords>
  EQ_TILE void MultiplyAdd(const int32_t* HWY_RESTRICT a, const int32_t* HWY_RESTRICT panel,
                           size_t panel_stride) {
    EQ_UNROLL_K
    for (size_t w = 0; w < kWords; ++w) {
      VI b[kVecs];
      EQ_UNROLL
      for (size_t v = 0; v < kVecs; ++v) {
        b[v] = hn::LoadU(DI(), panel + (v / kStripVecs) * panel_stride + w * kStripFloats +
                                   (v % kStripVecs) * kVecFloats);
      }
      EQ_UNROLL
      for (size_t r = 0; r < kRows; ++r) {
        const VI x = hn::Set(DI(), a[r * kRowStride + w * kWordStride]);
        EQ_UNROLL
        for (size_t v = 0; v < kVecs; ++v) {
          c[r][v] = Dot::Add(c[r][v], x, b[v]);
          KeepOrder(c[r][v]);
        }
      }
    }
  }
};

// Calls body.Rows<n>(first_row) for n = kIntTileRows as far as they fit, then for single rows.
template <class Body>
HWY_INLINE void ForIntRows(size_t rows, const Body& body) {
  size_t row = 0;
  for (; row + kIntTileRows <= rows; row += kIntTileRows) body.template Rows<kIntTileRows>(row);
  if constexpr (kIntTileRows > 1) {
    for (; row < rows; ++row) body.template Rows<1>(row);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_INT_TILE_INL_H_

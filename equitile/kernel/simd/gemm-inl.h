// The one multiply-add micro-kernel: a register tile of C, C[rows][16 s] += A[rows][k] *
// panels[s][k][16], where the rows of A are broadcast and the panels are read as vectors. QK^T, PV,
// linear layers and convolutions are all this tile; they differ in what the rows and the panels
// are, and in what happens to the tile when it leaves the registers.
//
// Every element of C is one chain of multiply-adds over ascending k, whatever the tile's shape.
// Results therefore depend on the SIMD target only, never on how work was cut into tiles. Callers
// rely on that for bit-identical results.
//
// Included once per target by the files that hold kernels (Highway's foreach_target).
#if defined(EQUITILE_KERNEL_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_GEMM_INL_H_
#undef EQUITILE_KERNEL_GEMM_INL_H_
#else
#define EQUITILE_KERNEL_GEMM_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#undef EQ_UNROLL
#if defined(__clang__)
#define EQ_UNROLL _Pragma("clang loop unroll(full)")
#else
#define EQ_UNROLL _Pragma("GCC unroll 32")
#endif

// The members of a tile. Fully unrolled, thousands of checked indices and pointers would take a
// compiler minutes; what they read and write in memory is still checked by the address sanitizer.
#undef EQ_TILE
#define EQ_TILE HWY_INLINE __attribute__((no_sanitize("undefined")))

// Of the loop over k: four steps at a time leave out most of the counting. With 512-bit vectors a
// step is only eight cycles of multiplying but thirty instructions, close to what four-wide front
// ends deliver; with 256 bits it helps where a core's other hardware thread shares the front end
// (docs/design/0004-linear.md).
#undef EQ_UNROLL_K
#undef EQ_NO_UNROLL
#if defined(__clang__)
#define EQ_UNROLL_K _Pragma("clang loop unroll_count(4)")
#define EQ_NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define EQ_UNROLL_K _Pragma("GCC unroll 4")
#define EQ_NO_UNROLL
#endif

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Vectors are at most one strip (16 floats) wide.
using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
inline constexpr size_t kStripFloats = 16;
inline constexpr size_t kVecFloats = hn::MaxLanes(DF());
inline constexpr size_t kStripVecs = kStripFloats / kVecFloats;

// The register tile. Rows times vectors is the number of independent chains: at least latency x
// throughput (8 on every current x86), at most what leaves registers for one vector per panel and a
// broadcast.
// Shapes that were tried: docs/design/0004-linear.md. On AVX-512 12 x 2 needs 14 loads for 24
// multiply-adds, well under the two loads a cycle; 16 x 1 would need 17 for 16.
#if HWY_TARGET == HWY_AVX3
inline constexpr size_t kTileRows = 12;   // 24 of 32 registers
inline constexpr size_t kTileStrips = 2;  // one strip is one vector
#elif HWY_TARGET == HWY_AVX2
inline constexpr size_t kTileRows = 6;  // 12 of 16 registers
inline constexpr size_t kTileStrips = 1;
#elif HWY_TARGET == HWY_SCALAR
inline constexpr size_t kTileRows = 1;
inline constexpr size_t kTileStrips = 1;
#elif HWY_ARCH_ARM
inline constexpr size_t kTileRows = 6;  // 24 of 32 registers
inline constexpr size_t kTileStrips = 1;
#else
inline constexpr size_t kTileRows =
    2;  // 8 of 16 registers: without fused multiply-add the product needs one too
inline constexpr size_t kTileStrips = 1;
#endif

// How A is laid out: element (row, k) lies at a[row * stride + k] or at a[row + k * stride].
enum class AOrder { kRowMajor, kColumnMajor };

// What a tile is made of: 32-bit numbers in A, panels and C, and how C grows by a product. Integers
// (integer_products-inl.h) hold several numbers in a word of A and of a panel.
struct FloatMath {
  using T = float;
  using D = DF;
  using V = VF;
  static HWY_INLINE V MulAdd(V a, V b, V c) { return hn::MulAdd(a, b, c); }
};

// C tile in registers: [rows][strips * kStripVecs].
template <size_t kRows, size_t kStrips, class Math = FloatMath>
struct Tile {
  using T = typename Math::T;
  using D = typename Math::D;
  using V = typename Math::V;
  static constexpr size_t kVecs = kStrips * kStripVecs;
  V c[kRows][kVecs];

  EQ_TILE void Zero() {
    EQ_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      EQ_UNROLL
      for (size_t v = 0; v < kVecs; ++v) c[r][v] = hn::Zero(D());
    }
  }

  // Row r, vector v of a tile in memory whose rows lie `stride` floats apart and whose strips lie
  // `strip_stride` floats apart.
  static constexpr size_t Offset(size_t row, size_t vec, size_t stride, size_t strip_stride) {
    return row * stride + (vec / kStripVecs) * strip_stride + (vec % kStripVecs) * kVecFloats;
  }

  EQ_TILE void Load(const T* HWY_RESTRICT from, size_t stride, size_t strip_stride) {
    EQ_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      EQ_UNROLL
      for (size_t v = 0; v < kVecs; ++v)
        c[r][v] = hn::LoadU(D(), from + Offset(r, v, stride, strip_stride));
    }
  }

  EQ_TILE void Store(T* HWY_RESTRICT to, size_t stride, size_t strip_stride) const {
    EQ_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      EQ_UNROLL
      for (size_t v = 0; v < kVecs; ++v)
        hn::StoreU(c[r][v], D(), to + Offset(r, v, stride, strip_stride));
    }
  }

  // c[r][.] += A(r, .) * panel[.] for one k.
  template <AOrder kOrder>
  EQ_TILE void Step(const T* HWY_RESTRICT a, size_t stride, const T* HWY_RESTRICT panel,
                    size_t panel_stride) {
    V b[kVecs];
    EQ_UNROLL
    for (size_t v = 0; v < kVecs; ++v) {
      b[v] =
          hn::LoadU(D(), panel + (v / kStripVecs) * panel_stride + (v % kStripVecs) * kVecFloats);
    }
    EQ_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const V ar = hn::Set(D(), kOrder == AOrder::kRowMajor ? a[r * stride] : a[r]);
      EQ_UNROLL
      for (size_t v = 0; v < kVecs; ++v) c[r][v] = Math::MulAdd(ar, b[v], c[r][v]);
    }
  }

  // c[r][.] += sum over k < depth, ascending, of A(r, k) * panel[k][.]. Panel s starts at panel + s
  // * panel_stride and holds [depth][16] floats. kStride is A's stride where it is known at compile
  // time, else 0 and a_stride counts.
  template <AOrder kOrder, size_t kStride = 0>
  EQ_TILE void MultiplyAdd(const T* HWY_RESTRICT a, size_t a_stride, const T* HWY_RESTRICT panel,
                           size_t panel_stride, size_t depth) {
    const size_t stride = kStride != 0 ? kStride : a_stride;
    const size_t step = kOrder == AOrder::kRowMajor ? 1 : stride;
    EQ_NO_UNROLL
    for (size_t k = 0; k < depth; ++k, a += step, panel += kStripFloats)
      Step<kOrder>(a, stride, panel, panel_stride);
  }

  // The same for a depth known at compile time: without counting, see EQ_UNROLL_K.
  template <AOrder kOrder, size_t kStride, size_t kDepth>
  EQ_TILE void MultiplyAddFixed(const T* HWY_RESTRICT a, const T* HWY_RESTRICT panel,
                                size_t panel_stride) {
    constexpr size_t kStep = kOrder == AOrder::kRowMajor ? 1 : kStride;
    EQ_UNROLL_K
    for (size_t k = 0; k < kDepth; ++k)
      Step<kOrder>(a + k * kStep, kStride, panel + k * kStripFloats, panel_stride);
  }
};

// Calls body.Rows<n>(first_row) for consecutive groups of n <= kTileRows rows that cover [0, rows),
// sizes differing by at most one: 16 rows become 6 + 5 + 5, not 6 + 6 + 4, so that every tile has
// enough chains.
template <class Body>
HWY_INLINE void ForRowTiles(size_t rows, const Body& body) {
  const size_t tiles = (rows + kTileRows - 1) / kTileRows;
  size_t row = 0;
  for (size_t t = tiles; t > 0; --t) {
    const size_t n = (rows - row + t - 1) / t;
    switch (n) {
#define EQ_ROWS(N)                                            \
  case N:                                                     \
    if constexpr (N <= kTileRows) body.template Rows<N>(row); \
    break;
      EQ_ROWS(1)
      EQ_ROWS(2)
      EQ_ROWS(3)
      EQ_ROWS(4)
      EQ_ROWS(5)
      EQ_ROWS(6)
      EQ_ROWS(7)
      EQ_ROWS(8)
      EQ_ROWS(9)
      EQ_ROWS(10)
      EQ_ROWS(11)
      EQ_ROWS(12)
#undef EQ_ROWS
    }
    row += n;
  }
}

// The same for a number of rows known at compile time, without loops or branches.
template <size_t kRows, size_t kRow = 0, class Body>
HWY_INLINE void ForFixedRowTiles(const Body& body) {
  constexpr size_t kLeft = kRows - kRow, kTiles = (kLeft + kTileRows - 1) / kTileRows;
  constexpr size_t kThis = (kLeft + kTiles - 1) / kTiles;
  body.template Rows<kThis>(kRow);
  if constexpr (kRow + kThis < kRows) ForFixedRowTiles<kRows, kRow + kThis>(body);
}

// For the few rows at a ragged end: tiles of 4, 2 and 1, a third of the code of ForRowTiles.
template <class Body>
HWY_INLINE void ForTailRows(size_t rows, const Body& body) {
  constexpr size_t kMost = HWY_MIN(kTileRows, size_t{4});
  size_t row = 0;
  for (; row + kMost <= rows; row += kMost) body.template Rows<kMost>(row);
  if constexpr (kMost > 2) {
    for (; row + 2 <= rows; row += 2) body.template Rows<2>(row);
  }
  for (; row < rows; ++row) body.template Rows<1>(row);
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_GEMM_INL_H_

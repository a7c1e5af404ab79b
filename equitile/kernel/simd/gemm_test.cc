#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "equitile/base/rng.h"
#include "equitile/kernel/target_testing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/simd/gemm_test.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/simd/gemm-inl.h"

#ifndef EQUITILE_KERNEL_GEMM_TEST_ONCE_
#define EQUITILE_KERNEL_GEMM_TEST_ONCE_
namespace equitile {

// C[rows][32] += A[rows][depth] * panels[2][depth][16], cut into tiles in some way.
struct GemmProblem {
  size_t rows, depth;
  const float* a;
  size_t a_row_stride, a_depth_stride;  // one of the two is 1
  const float* panels;
  size_t panel_stride;
};

struct RowTile {
  size_t first, rows;
};

}  // namespace equitile
#endif  // EQUITILE_KERNEL_GEMM_TEST_ONCE_

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

template <size_t kRows, size_t kStrips>
void TileOnce(const GemmProblem& g, size_t row, size_t strip, size_t split, float* c) {
  Tile<kRows, kStrips> tile;
  float* to = c + row * 32 + strip * 16;
  tile.Load(to, 32, 16);
  // Two calls over the depth are one chain, as the callers cut it.
  for (const auto& [begin, end] : {std::pair{size_t{0}, split}, std::pair{split, g.depth}}) {
    const float* a = g.a + row * g.a_row_stride + begin * g.a_depth_stride;
    const float* panel = g.panels + strip * g.panel_stride + begin * 16;
    if (g.a_depth_stride == 1) {
      tile.template MultiplyAdd<AOrder::kRowMajor>(a, g.a_row_stride, panel, g.panel_stride,
                                                   end - begin);
    } else if (g.a_depth_stride == 48) {
      size_t k = begin;
      for (; k + 16 <= end; k += 16, a += 16 * 48, panel += 16 * 16)
        tile.template MultiplyAddFixed<AOrder::kColumnMajor, 48, 16>(a, panel, g.panel_stride);
      tile.template MultiplyAdd<AOrder::kColumnMajor, 48>(a, 0, panel, g.panel_stride, end - k);
    } else {
      tile.template MultiplyAdd<AOrder::kColumnMajor>(a, g.a_depth_stride, panel, g.panel_stride,
                                                      end - begin);
    }
  }
  tile.Store(to, 32, 16);
}

template <size_t kStrips>
struct TileBody {
  const GemmProblem& g;
  size_t strip, split, first_row;
  float* c;
  template <size_t kRows>
  void Rows(size_t row) const {
    TileOnce<kRows, kStrips>(g, first_row + row, strip, split, c);
  }
};

// The rows in groups of `group`, each cut by ForRowTiles, in tiles of `strips` strips.
void GemmInGroups(const GemmProblem& g, size_t group, bool wide, size_t split, float* c) {
  for (size_t row = 0; row < g.rows; row += group) {
    const size_t rows = HWY_MIN(group, g.rows - row);
    if (wide) {
      ForRowTiles(rows, TileBody<2>{g, 0, split, row, c});
    } else {
      for (size_t strip = 0; strip < 2; ++strip)
        ForRowTiles(rows, TileBody<1>{g, strip, split, row, c});
    }
  }
}

struct CoverBody {
  std::vector<RowTile>* tiles;
  template <size_t kRows>
  void Rows(size_t row) const {
    tiles->push_back({row, kRows});
  }
};

void CoverRows(size_t rows, std::vector<RowTile>* tiles, size_t* largest) {
  ForRowTiles(rows, CoverBody{tiles});
  *largest = kTileRows;
}

// The chain that every element is, by definition.
float Chain(const GemmProblem& g, size_t row, size_t column, float c) {
  for (size_t k = 0; k < g.depth; ++k) {
    const float a = g.a[row * g.a_row_stride + k * g.a_depth_stride];
    const float b = g.panels[column / 16 * g.panel_stride + k * 16 + column % 16];
    c = HWY_NATIVE_FMA ? std::fma(a, b, c) : a * b + c;
  }
  return c;
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(GemmInGroups);
HWY_EXPORT(CoverRows);
HWY_EXPORT(Chain);

std::vector<float> RandomFloats(size_t n, uint32_t stream) {
  std::vector<float> x(n);
  const Rng rng(3, stream);
  for (size_t i = 0; i < n; ++i) x[i] = rng.NormalAt(i);
  return x;
}

class GemmTest : public testing::TargetTest {
 protected:
  static constexpr size_t kRows = 37;

  // Bits, so that -0 is not 0 and NaN is NaN.
  static void ExpectSameBits(const std::vector<float>& got, const std::vector<float>& want,
                             const std::string& what) {
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(float)), 0)
          << what << ": row " << i / 32 << ", column " << i % 32 << ": " << got[i] << " against "
          << want[i];
    }
  }
};

TEST_P(GemmTest, EveryElementIsOneChainWhateverTheTile) {
  const std::vector<float> c = RandomFloats(kRows * 32, 2);
  for (size_t depth : {1, 2, 7, 16, 61}) {
    const size_t panel_stride = depth * 16 + 32;
    const std::vector<float> panels = RandomFloats(2 * panel_stride, 1);
    const std::vector<float> a = RandomFloats(kRows * (depth + 3) + depth * 53, 0);
    for (const auto& [row_stride, depth_stride] :
         {std::pair{depth + 3, size_t{1}}, std::pair{size_t{1}, size_t{48}},
          std::pair{size_t{1}, size_t{53}}}) {
      const GemmProblem g = {kRows,        depth,         a.data(),    row_stride,
                             depth_stride, panels.data(), panel_stride};
      std::vector<float> want = c;
      for (size_t i = 0; i < want.size(); ++i)
        want[i] = HWY_DYNAMIC_DISPATCH(Chain)(g, i / 32, i % 32, c[i]);
      for (size_t group : {1, 2, 3, 5, 6, 7, 11, 12, 13, 16, 37}) {
        for (bool wide : {false, true}) {
          std::vector<float> got = c;
          HWY_DYNAMIC_DISPATCH(GemmInGroups)(g, group, wide, depth * group / 40, got.data());
          ExpectSameBits(got, want,
                         "depth " + std::to_string(depth) + ", groups of " + std::to_string(group) +
                             (wide ? ", two strips" : ", one strip"));
        }
      }
    }
  }
}

TEST_P(GemmTest, TilesCoverTheRowsOnceAndEvenly) {
  for (size_t rows = 0; rows <= 70; ++rows) {
    std::vector<RowTile> tiles;
    size_t largest = 0;
    HWY_DYNAMIC_DISPATCH(CoverRows)(rows, &tiles, &largest);
    size_t next = 0, most = 0, least = rows;
    for (const RowTile& tile : tiles) {
      EXPECT_EQ(tile.first, next) << rows << " rows";
      next += tile.rows;
      most = std::max(most, tile.rows);
      least = std::min(least, tile.rows);
    }
    EXPECT_EQ(next, rows);
    EXPECT_LE(most, largest);
    if (rows > 0) EXPECT_LE(most - least, 1u) << rows << " rows";
    EXPECT_EQ(tiles.size(), (rows + largest - 1) / largest) << rows << " rows";
  }
}

EQUITILE_TEST_ON_ALL_TARGETS(GemmTest);

}  // namespace
}  // namespace equitile
#endif  // HWY_ONCE

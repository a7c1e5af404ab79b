#include "equitile/kernel/linear/pack_panel.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "equitile/base/rng.h"
#include "equitile/kernel/target_testing.h"
#include "equitile/tensor/tensor.h"

namespace equitile {
namespace {

// Numbers of all sizes, with halves between two bf16 among them.
Tensor Rows(DType dtype, int64_t in) {
  Tensor rows(dtype, {kPanelColumns, in});
  const Rng rng(6);
  for (int64_t c = 0; c < kPanelColumns; ++c) {
    for (int64_t k = 0; k < in; ++k) {
      const auto at = static_cast<uint64_t>(c * in + k);
      float value = std::ldexp(rng.NormalAt(at), static_cast<int>(rng.BelowAt(at, 20)) - 10);
      if (at % 3 == 0) {
        value = std::bit_cast<float>((std::bit_cast<uint32_t>(value) & 0xFFFF0000u) | 0x8000u);
      }
      rows.view().Store(value, c, k);
    }
  }
  return rows;
}

PanelRows Panel(const ConstView& rows) {
  PanelRows panel;
  panel.in = rows.Extent(1);
  panel.count = rows.Extent(0);
  panel.dtype = rows.dtype();
  for (int64_t c = 0; c < panel.count; ++c) {
    panel.rows[c] = {rows.Address(c, 0), rows.Stride(1)};
  }
  return panel;
}

class PackPanelTest : public testing::TargetTest {};

TEST_P(PackPanelTest, EveryTypeLengthAndNumberOfRows) {
  for (DType from : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (DType to : {DType::kF32, DType::kBF16}) {
      for (int64_t in : {1, 7, 8, 9, 24, 101}) {
        for (int64_t count : {1, 15, 16}) {
          const Tensor rows = Rows(from, in);
          Tensor packed(to, {in, kPanelColumns});
          const ConstView used = rows.view().Slice(0, {0, count});
          EXPECT_TRUE(PackPanel(Panel(used), to, packed.view().Data()));
          for (int64_t k = 0; k < in; ++k) {
            for (int64_t c = 0; c < kPanelColumns; ++c) {
              float wanted = c < count ? rows.view().Load(c, k) : 0.0f;
              if (to == DType::kBF16) wanted = ToFloat(FromFloat<Bf16>(wanted));
              ASSERT_EQ(packed.view().Load(k, c), wanted)
                  << DTypeName(from) << " to " << DTypeName(to) << ", in " << in << ": " << k
                  << ", " << c;
            }
          }
        }
      }
    }
  }
}

// Wherever it is, in whole vectors or in the rest; and it stays what it was.
TEST_P(PackPanelTest, SaysWhereAValueIsNotFinite) {
  constexpr int64_t kIn = 19;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (DType from : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (DType to : {DType::kF32, DType::kBF16}) {
      for (float bad : {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")}) {
        for (int64_t at = 0; at < kPanelColumns * kIn; at += 7) {
          Tensor rows = Rows(from, kIn), packed(to, {kIn, kPanelColumns});
          rows.view().Store(bad, at / kIn, at % kIn);
          ASSERT_FALSE(PackPanel(Panel(rows.view()), to, packed.view().Data())) << at;
          const float value = packed.view().Load(at % kIn, at / kIn);
          ASSERT_TRUE(std::isnan(bad) ? std::isnan(value) : value == bad) << value;
        }
      }
    }
  }
}

// The largest numbers are finite, also where bf16 rounds them up to infinity.
TEST_P(PackPanelTest, LargestNumbers) {
  Tensor rows = Rows(DType::kF32, 8), packed(DType::kBF16, {8, kPanelColumns});
  rows.view().Store(std::numeric_limits<float>::max(), 3, 2);
  EXPECT_TRUE(PackPanel(Panel(rows.view()), DType::kBF16, packed.view().Data()));
  EXPECT_TRUE(std::isinf(packed.view().Load(2, 3)));
}

EQUITILE_TEST_ON_ALL_TARGETS(PackPanelTest);

}  // namespace
}  // namespace equitile

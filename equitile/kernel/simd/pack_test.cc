#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "equitile/base/aligned_buffer.h"
#include "equitile/base/rng.h"
#include "equitile/kernel/target_testing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/simd/pack_test.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

void F16ToFloats(const F16* from, size_t n, float* to) { ToFloats(from, n, to); }
void Bf16ToFloats(const Bf16* from, size_t n, float* to) { ToFloats(from, n, to); }
void FloatsToF16(const float* from, size_t n, F16* to) { FromFloats(from, n, to); }
void FloatsToBf16(const float* from, size_t n, Bf16* to) { FromFloats(from, n, to); }
void ToColumns(const float* const* rows, size_t n, float* columns) {
  RowsToColumns(rows, n, columns);
}
void ToRows(const float* columns, const float* factor, size_t n, float* const* rows) {
  ColumnsToRows(columns, factor, n, rows);
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(F16ToFloats);
HWY_EXPORT(Bf16ToFloats);
HWY_EXPORT(FloatsToF16);
HWY_EXPORT(FloatsToBf16);
HWY_EXPORT(ToColumns);
HWY_EXPORT(ToRows);

uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }

class PackTest : public testing::TargetTest {};

// Vectors agree with the scalar conversions bit for bit: a number must not depend on whether it
// falls into a vector or into the rest.
TEST_P(PackTest, EveryHalfAsTheScalarConversion) {
  std::vector<F16> from(65536);
  for (uint32_t i = 0; i < from.size(); ++i) from[i].bits = static_cast<uint16_t>(i);
  for (size_t shift : {0, 1, 5}) {  // other places within the vector, other lengths of the rest
    std::vector<float> to(from.size() - shift + 1, 7.0f);
    HWY_DYNAMIC_DISPATCH(F16ToFloats)(from.data() + shift, from.size() - shift, to.data());
    for (size_t i = shift; i < from.size(); ++i)
      ASSERT_EQ(Bits(to[i - shift]), Bits(ToFloat(from[i]))) << "half " << i << ", shift " << shift;
    EXPECT_EQ(to.back(), 7.0f);
  }
}

TEST_P(PackTest, EveryBf16AsTheScalarConversion) {
  std::vector<Bf16> from(65536);
  for (uint32_t i = 0; i < from.size(); ++i) from[i].bits = static_cast<uint16_t>(i);
  std::vector<float> to(from.size());
  HWY_DYNAMIC_DISPATCH(Bf16ToFloats)(from.data(), from.size(), to.data());
  for (size_t i = 0; i < from.size(); ++i) ASSERT_EQ(Bits(to[i]), Bits(ToFloat(from[i]))) << i;
}

TEST_P(PackTest, ToStorageAsTheScalarConversion) {
  std::vector<float> from;
  const Rng rng(4);
  for (uint64_t i = 0; i < 20001; ++i) from.push_back(std::bit_cast<float>(rng.BitsAt(i)));
  for (uint32_t i = 0; i < 65536; ++i) {  // halves, and ties between them
    from.push_back(ToFloat(F16{static_cast<uint16_t>(i)}));
    from.push_back(std::bit_cast<float>(Bits(from.back()) + 0x1000));
    from.push_back(std::bit_cast<float>(i << 16 | 0x8000));
  }
  std::vector<F16> halves(from.size());
  std::vector<Bf16> bf16s(from.size());
  HWY_DYNAMIC_DISPATCH(FloatsToF16)(from.data(), from.size(), halves.data());
  HWY_DYNAMIC_DISPATCH(FloatsToBf16)(from.data(), from.size(), bf16s.data());
  for (size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(halves[i].bits, FromFloat<F16>(from[i]).bits) << from[i];
    ASSERT_EQ(bf16s[i].bits, FromFloat<Bf16>(from[i]).bits) << from[i];
  }
}

TEST_P(PackTest, ColumnsAreRowsTransposed) {
  for (size_t n : {8, 16, 24, 40, 512}) {
    std::vector<std::vector<float>> rows(16, std::vector<float>(n + 1));
    const float* pointers[16];
    for (size_t t = 0; t < 16; ++t) {
      for (size_t i = 0; i <= n; ++i) rows[t][i] = static_cast<float>(1000 * t + i);
      pointers[t] = rows[t].data() + t % 2;  // rows need not be aligned
    }
    AlignedBuffer<float> columns(static_cast<int64_t>(n * 16 + 16));
    for (float& x : columns.span()) x = -1.0f;
    HWY_DYNAMIC_DISPATCH(ToColumns)(pointers, n, columns.data());
    for (size_t i = 0; i < n; ++i) {
      for (size_t t = 0; t < 16; ++t)
        ASSERT_EQ(columns[static_cast<int64_t>(i * 16 + t)], pointers[t][i]) << i << " " << t;
    }
    for (int64_t i = 0; i < 16; ++i)
      EXPECT_EQ(columns[static_cast<int64_t>(n * 16) + i], -1.0f) << "written past the end";
  }
}

TEST_P(PackTest, RowsAreColumnsTransposedTimesTheFactor) {
  for (size_t n : {8, 16, 24, 40, 512}) {
    AlignedBuffer<float> columns(static_cast<int64_t>(n * 16));
    for (int64_t i = 0; i < columns.size(); ++i) columns[i] = static_cast<float>(i) * 0.37f;
    alignas(64) float factor[16];
    for (size_t t = 0; t < 16; ++t) factor[t] = 1.0f / static_cast<float>(t + 3);
    std::vector<std::vector<float>> rows(16, std::vector<float>(n + 2, -1.0f));
    float* pointers[16];
    for (size_t t = 0; t < 16; ++t) pointers[t] = rows[t].data() + t % 2;
    HWY_DYNAMIC_DISPATCH(ToRows)(columns.data(), factor, n, pointers);
    for (size_t t = 0; t < 16; ++t) {
      for (size_t i = 0; i < n; ++i)
        ASSERT_EQ(pointers[t][i], columns[static_cast<int64_t>(i * 16 + t)] * factor[t]);
      EXPECT_EQ(pointers[t][n], -1.0f) << "written past the end";
    }
  }
}

EQUITILE_TEST_ON_ALL_TARGETS(PackTest);

}  // namespace
}  // namespace equitile
#endif  // HWY_ONCE

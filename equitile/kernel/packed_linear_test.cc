#include "equitile/kernel/packed_linear.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/base/rng.h"
#include "equitile/tensor/tensor.h"

namespace equitile {
namespace {

Tensor RandomWeights(DType dtype, int64_t out, int64_t in) {
  Tensor weights(dtype, {out, in});
  const Rng rng(3);
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t i = 0; i < in; ++i) {
      weights.view().Store(rng.NormalAt(static_cast<uint64_t>(o * in + i)), o, i);
    }
  }
  return weights;
}

AlignedBuffer<std::byte> Pack(const ConstView& weights, DType dtype) {
  ThreadPool pool(2);
  AlignedBuffer<std::byte> bytes(PackedLinearBytes(weights.Extent(1), weights.Extent(0), dtype));
  PackLinear(weights, dtype, bytes.span(), pool);
  return bytes;
}

float WeightAt(const PackedLinear& packed, int64_t o, int64_t i) {
  const int64_t offset = i * kPanelColumns + o % kPanelColumns;
  const void* panel = packed.Panel(o / kPanelColumns);
  return packed.dtype() == DType::kF32 ? static_cast<const float*>(panel)[offset]
                                       : ToFloat(static_cast<const Bf16*>(panel)[offset]);
}

void ExpectHolds(const PackedLinear& packed, const ConstView& weights) {
  ASSERT_EQ(packed.Out(), weights.Extent(0));
  ASSERT_EQ(packed.In(), weights.Extent(1));
  for (int64_t i = 0; i < packed.In(); ++i) {
    for (int64_t o = 0; o < packed.Panels() * kPanelColumns; ++o) {
      float wanted = o < packed.Out() ? weights.Load(o, i) : 0.0f;
      if (packed.dtype() == DType::kBF16) wanted = ToFloat(FromFloat<Bf16>(wanted));
      ASSERT_EQ(WeightAt(packed, o, i), wanted) << "output " << o << " input " << i;
    }
  }
}

TEST(PackedLinear, HoldsTheWeightsOfEveryTypeAndSize) {
  for (DType from : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (DType to : {DType::kF32, DType::kBF16}) {
      for (int64_t out : {1, 15, 16, 17, 33}) {
        for (int64_t in : {1, 7, 16, 37}) {
          const Tensor weights = RandomWeights(from, out, in);
          const AlignedBuffer<std::byte> bytes = Pack(weights, to);
          ExpectHolds(PackedLinear::View(bytes.span()), weights);
        }
      }
    }
  }
}

TEST(PackedLinear, TransposedAndSlicedWeights) {
  const Tensor weights = RandomWeights(DType::kF32, 20, 30);
  const ConstView view = weights.view().Transpose(0, 1).Slice(0, {2, 25}).Slice(1, {1, 20});
  const AlignedBuffer<std::byte> bytes = Pack(view, DType::kF32);
  ExpectHolds(PackedLinear::View(bytes.span()), view);
}

TEST(PackedLinear, MatricesOnTopOfEachOther) {
  const Tensor whole = RandomWeights(DType::kBF16, 50, 21);
  const ConstView parts[] = {whole.view().Slice(0, {0, 9}), whole.view().Slice(0, {9, 41}),
                             whole.view().Slice(0, {41, 50})};
  ThreadPool pool(2);
  AlignedBuffer<std::byte> bytes(PackedLinearBytes(21, 50, DType::kF32));
  EXPECT_EQ(PackLinear(parts, DType::kF32, bytes.span(), pool), -1);
  ExpectHolds(PackedLinear::View(bytes.span()), whole);
  const Tensor narrow = RandomWeights(DType::kBF16, 4, 20),
               other = RandomWeights(DType::kF32, 4, 21);
  for (const Tensor* odd : {&narrow, &other}) {
    const ConstView mixed[] = {parts[0], odd->view()};
    EXPECT_THROW(PackLinear(mixed, DType::kF32, bytes.span(), pool), InputError);
  }
  EXPECT_THROW(PackLinear(std::span<const ConstView>(), DType::kF32, bytes.span(), pool),
               InputError);
}

TEST(PackedLinear, MayMove) {
  const Tensor weights = RandomWeights(DType::kF32, 19, 5);
  AlignedBuffer<std::byte> bytes = Pack(weights, DType::kBF16);
  AlignedBuffer<std::byte> elsewhere(bytes.size() + 64);
  std::memcpy(elsewhere.data() + 64, bytes.data(), static_cast<size_t>(bytes.size()));
  bytes = {};
  ExpectHolds(PackedLinear::View(elsewhere.span().subspan(64)), weights);
}

TEST(PackedLinear, PackingDoesNotWriteBeyondItsBytes) {
  const Tensor weights = RandomWeights(DType::kF32, 17, 3);
  const int64_t size = PackedLinearBytes(3, 17, DType::kF32);
  AlignedBuffer<std::byte> bytes(size + 8);
  std::memset(bytes.data(), 0x5A, static_cast<size_t>(bytes.size()));
  ThreadPool pool(1);
  PackLinear(weights, DType::kF32, bytes.span(), pool);
  for (int64_t i = size; i < bytes.size(); ++i) EXPECT_EQ(bytes[i], std::byte{0x5A});
}

TEST(PackedLinear, RefusesWhatIsNotPackedWeights) {
  const Tensor weights = RandomWeights(DType::kF32, 17, 3);
  AlignedBuffer<std::byte> bytes = Pack(weights, DType::kF32);
  EXPECT_THROW(PackedLinear::View({}), InputError);
  EXPECT_THROW(PackedLinear::View(bytes.span().first(63)), InputError);
  EXPECT_THROW(PackedLinear::View(bytes.span().first(bytes.span().size() - 1)), InputError);
  EXPECT_THROW(PackedLinear::View(AlignedBuffer<std::byte>::Zeroed(4096).span()), InputError);
  // Any byte of the header that means something, changed.
  for (int64_t i = 0; i < 40; ++i) {
    const std::byte old = bytes[i];
    bytes[i] = old ^ std::byte{0x41};
    EXPECT_THROW(PackedLinear::View(bytes.span()), InputError) << "byte " << i;
    bytes[i] = old;
  }
  EXPECT_NO_THROW(PackedLinear::View(bytes.span()));

  AlignedBuffer<std::byte> askew(bytes.size() + 4);
  std::memcpy(askew.data() + 4, bytes.data(), static_cast<size_t>(bytes.size()));
  EXPECT_THROW(PackedLinear::View(askew.span().subspan(4)), InputError);
}

TEST(PackedLinear, RefusesWhatCannotBePacked) {
  const Tensor weights = RandomWeights(DType::kF32, 4, 3);
  ThreadPool pool(1);
  AlignedBuffer<std::byte> small(PackedLinearBytes(3, 4, DType::kF32) - 1);
  EXPECT_THROW(PackLinear(weights, DType::kF32, small.span(), pool), InputError);
  EXPECT_THROW(PackLinear(weights.view().Select(0, 0), DType::kF32, small.span(), pool),
               InputError);
  EXPECT_THROW(PackedLinearBytes(3, 4, DType::kF16), InputError);
  EXPECT_THROW(PackedLinearBytes(0, 4, DType::kF32), InputError);
  EXPECT_THROW(PackedLinearBytes(3, 0, DType::kF32), InputError);
  EXPECT_THROW(PackedLinearBytes(int64_t{1} << 40, int64_t{1} << 40, DType::kF32), InputError);
}

}  // namespace
}  // namespace equitile

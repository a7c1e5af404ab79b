#include "equitile/kernel/linear/packed_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
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

AlignedBuffer<std::byte> Pack(const ConstView& weights, WeightType type) {
  ThreadPool pool(2);
  AlignedBuffer<std::byte> bytes(PackedLinearBytes(weights.Extent(1), weights.Extent(0), type));
  PackLinear(weights, type, bytes.span(), pool);
  return bytes;
}

// The integer of output o and input i, which may be the padding of the last word.
int32_t IntegerAt(const PackedLinear& packed, int64_t o, int64_t i) {
  const int64_t inputs = 4 / WeightBytes(packed.type());  // of a word
  const int64_t offset = (i / inputs * kPanelColumns + o % kPanelColumns) * inputs + i % inputs;
  const void* panel = packed.Panel(o / kPanelColumns);
  return packed.type() == WeightType::kInt16 ? static_cast<const int16_t*>(panel)[offset]
                                             : static_cast<const int8_t*>(panel)[offset];
}

float WeightAt(const PackedLinear& packed, int64_t o, int64_t i) {
  const int64_t offset = i * kPanelColumns + o % kPanelColumns;
  const void* panel = packed.Panel(o / kPanelColumns);
  switch (packed.type()) {
    case WeightType::kF32:
      return static_cast<const float*>(panel)[offset];
    case WeightType::kBF16:
      return ToFloat(static_cast<const Bf16*>(panel)[offset]);
    case WeightType::kInt16:
    case WeightType::kInt8:
      break;
  }
  return static_cast<float>(IntegerAt(packed, o, i)) *
         packed.Scales(o / kPanelColumns)[o % kPanelColumns];
}

void ExpectHolds(const PackedLinear& packed, const ConstView& weights) {
  ASSERT_EQ(packed.Out(), weights.Extent(0));
  ASSERT_EQ(packed.In(), weights.Extent(1));
  for (int64_t i = 0; i < packed.In(); ++i) {
    for (int64_t o = 0; o < packed.Panels() * kPanelColumns; ++o) {
      float wanted = o < packed.Out() ? weights.Load(o, i) : 0.0f;
      if (packed.type() == WeightType::kBF16) wanted = ToFloat(FromFloat<Bf16>(wanted));
      // Integers are right within half a step, and a little for the product.
      const float step =
          IsInteger(packed.type()) ? packed.Scales(o / kPanelColumns)[o % kPanelColumns] : 0.0f;
      ASSERT_NEAR(WeightAt(packed, o, i), wanted, 0.5002f * step)
          << WeightTypeName(packed.type()) << " output " << o << " input " << i;
    }
  }
}

TEST(PackedLinear, HoldsTheWeightsOfEveryTypeAndSize) {
  for (DType from : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (WeightType to : kWeightTypes) {
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

// The largest weight of an output is the top, whatever its size; words are full of zeros at the
// end; parts of int8 know their sums.
TEST(PackedLinear, IntegersUseTheirRange) {
  for (WeightType type : {WeightType::kInt16, WeightType::kInt8}) {
    const Compute compute = ComputeOf(type);
    for (int64_t in : {1, 3, 130, 1027}) {
      Tensor weights = RandomWeights(DType::kF32, 19, in);
      for (int64_t i = 0; i < in; ++i) {
        weights.view().Store(weights.view().Load(3, i) * 1e30f, 3, i);
        weights.view().Store(weights.view().Load(4, i) * 1e-25f, 4, i);
        weights.view().Store(0.0f, 5, i);
        weights.view().Store(1e-41f, 6, i);
        weights.view().Store(-7.0f, 7, i);
      }
      const AlignedBuffer<std::byte> bytes = Pack(weights, type);
      const PackedLinear packed = PackedLinear::View(bytes.span());
      const int64_t padded = RoundUp(in, 4 / WeightBytes(type));
      for (int64_t o = 0; o < 19; ++o) {
        int32_t most = 0;
        std::vector<int32_t> sums(static_cast<size_t>(CeilDiv(in, PartInputs(compute))), 0);
        for (int64_t i = 0; i < in; ++i) {
          most = std::max(most, std::abs(IntegerAt(packed, o, i)));
          sums[static_cast<size_t>(i / PartInputs(compute))] += IntegerAt(packed, o, i);
        }
        for (int64_t i = in; i < padded; ++i) EXPECT_EQ(IntegerAt(packed, o, i), 0);
        const bool is_nothing = o == 5 || o == 6;
        EXPECT_EQ(most, is_nothing ? 0 : RoundingTop(compute)) << "output " << o << " of " << in;
        for (size_t part = 0; part < sums.size() && type == WeightType::kInt8; ++part) {
          EXPECT_EQ(packed.PartSums(o / 16, static_cast<int64_t>(part))[o % 16], sums[part]);
        }
      }
    }
  }
}

TEST(PackedLinear, IntegersTakeHalfAndAQuarterOfTheMemory) {
  const auto bytes = [](WeightType type) {
    return static_cast<double>(PackedLinearBytes(1536, 8960, type));
  };
  EXPECT_NEAR(bytes(WeightType::kInt16) / bytes(WeightType::kF32), 0.5, 0.005);
  EXPECT_NEAR(bytes(WeightType::kInt8) / bytes(WeightType::kF32), 0.25, 0.005);
}

TEST(PackedLinear, TransposedAndSlicedWeights) {
  const Tensor weights = RandomWeights(DType::kF32, 20, 30);
  const ConstView view = weights.view().Transpose(0, 1).Slice(0, {2, 25}).Slice(1, {1, 20});
  const AlignedBuffer<std::byte> bytes = Pack(view, WeightType::kF32);
  ExpectHolds(PackedLinear::View(bytes.span()), view);
}

TEST(PackedLinear, MatricesOnTopOfEachOther) {
  const Tensor whole = RandomWeights(DType::kBF16, 50, 21);
  const ConstView parts[] = {whole.view().Slice(0, {0, 9}), whole.view().Slice(0, {9, 41}),
                             whole.view().Slice(0, {41, 50})};
  ThreadPool pool(2);
  AlignedBuffer<std::byte> bytes(PackedLinearBytes(21, 50, WeightType::kF32));
  EXPECT_EQ(PackLinear(parts, WeightType::kF32, bytes.span(), pool), -1);
  ExpectHolds(PackedLinear::View(bytes.span()), whole);
  const Tensor narrow = RandomWeights(DType::kBF16, 4, 20),
               other = RandomWeights(DType::kF32, 4, 21);
  for (const Tensor* odd : {&narrow, &other}) {
    const ConstView mixed[] = {parts[0], odd->view()};
    EXPECT_THROW(PackLinear(mixed, WeightType::kF32, bytes.span(), pool), InputError);
  }
  EXPECT_THROW(PackLinear(std::span<const ConstView>(), WeightType::kF32, bytes.span(), pool),
               InputError);
}

TEST(PackedLinear, MayMove) {
  const Tensor weights = RandomWeights(DType::kF32, 19, 5);
  AlignedBuffer<std::byte> bytes = Pack(weights, WeightType::kBF16);
  AlignedBuffer<std::byte> elsewhere(bytes.size() + 64);
  std::memcpy(elsewhere.data() + 64, bytes.data(), static_cast<size_t>(bytes.size()));
  bytes = {};
  ExpectHolds(PackedLinear::View(elsewhere.span().subspan(64)), weights);
}

TEST(PackedLinear, PackingDoesNotWriteBeyondItsBytes) {
  const Tensor weights = RandomWeights(DType::kF32, 17, 3);
  const int64_t size = PackedLinearBytes(3, 17, WeightType::kF32);
  AlignedBuffer<std::byte> bytes(size + 8);
  std::memset(bytes.data(), 0x5A, static_cast<size_t>(bytes.size()));
  ThreadPool pool(1);
  PackLinear(weights, WeightType::kF32, bytes.span(), pool);
  for (int64_t i = size; i < bytes.size(); ++i) EXPECT_EQ(bytes[i], std::byte{0x5A});
}

TEST(PackedLinear, RefusesWhatIsNotPackedWeights) {
  const Tensor weights = RandomWeights(DType::kF32, 17, 3);
  AlignedBuffer<std::byte> bytes = Pack(weights, WeightType::kF32);
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
  AlignedBuffer<std::byte> small(PackedLinearBytes(3, 4, WeightType::kF32) - 1);
  EXPECT_THROW(PackLinear(weights, WeightType::kF32, small.span(), pool), InputError);
  EXPECT_THROW(PackLinear(weights.view().Select(0, 0), WeightType::kF32, small.span(), pool),
               InputError);
  EXPECT_THROW(PackedLinearBytes(0, 4, WeightType::kF32), InputError);
  EXPECT_THROW(PackedLinearBytes(3, 0, WeightType::kF32), InputError);
  EXPECT_THROW(PackedLinearBytes(int64_t{1} << 40, int64_t{1} << 40, WeightType::kF32), InputError);
}

}  // namespace
}  // namespace equitile

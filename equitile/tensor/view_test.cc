#include "equitile/tensor/view.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "equitile/tensor/tensor.h"

namespace equitile {
namespace {

std::vector<float> Counting(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

TEST(Shape, RankElementsAndText) {
  const Shape shape = {2, 3, 5};
  EXPECT_EQ(shape.Rank(), 3);
  EXPECT_EQ(shape.Elements(), 30);
  EXPECT_EQ(shape.ToString(), "[2, 3, 5]");
  EXPECT_EQ(Shape{}.Elements(), 1);
  EXPECT_EQ((Shape{4, 0, 7}).Elements(), 0);
  EXPECT_EQ(shape, (Shape{2, 3, 5}));
  EXPECT_NE(shape, (Shape{2, 3, 5, 1}));
}

TEST(View, AddressesAreRowMajor) {
  std::vector<float> values = Counting(24);
  const View view(values.data(), {2, 3, 4});
  for (int a = 0; a < 2; ++a) {
    for (int b = 0; b < 3; ++b) {
      for (int c = 0; c < 4; ++c) EXPECT_EQ(view.Load(a, b, c), (a * 3 + b) * 4 + c);
    }
  }
  EXPECT_EQ(view.Address(1, 2, 3), &values[23]);
}

TEST(View, SliceSelectTransposeAgreeWithIndices) {
  std::vector<float> values = Counting(2 * 3 * 5 * 7);
  const ConstView view = View(values.data(), {2, 3, 5, 7});
  const ConstView slice = view.Slice(2, {1, 4});
  EXPECT_EQ(slice.shape(), (Shape{2, 3, 3, 7}));
  EXPECT_EQ(slice.Load(1, 2, 0, 6), view.Load(1, 2, 1, 6));
  const ConstView select = slice.Select(1, 2);
  EXPECT_EQ(select.shape(), (Shape{2, 3, 7}));
  EXPECT_EQ(select.Load(1, 2, 5), view.Load(1, 2, 3, 5));
  const ConstView transposed = select.Transpose(0, 2);
  EXPECT_EQ(transposed.shape(), (Shape{7, 3, 2}));
  EXPECT_EQ(transposed.Load(5, 2, 1), select.Load(1, 2, 5));
  EXPECT_EQ(view.Slice(0, {2, 2}).Elements(), 0);
}

TEST(View, Contiguous) {
  std::vector<float> values = Counting(60);
  const View view(values.data(), {3, 4, 5});
  EXPECT_TRUE(view.IsContiguous());
  EXPECT_TRUE(view.Slice(0, {1, 3}).IsContiguous());
  EXPECT_FALSE(view.Slice(1, {0, 2}).IsContiguous());
  EXPECT_TRUE(view.Slice(0, {1, 2}).Slice(1, {1, 3}).IsContiguous());
  EXPECT_FALSE(view.Transpose(0, 1).IsContiguous());
  EXPECT_TRUE(view.Slice(2, {0, 0}).IsContiguous());
  EXPECT_TRUE(View(values.data(), {1, 60, 1}).Transpose(0, 2).IsContiguous());
  EXPECT_EQ(view.Reshape({12, 5}).Load(11, 4), 59.0f);
}

TEST(View, StoresRoundToTheirDType) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Tensor tensor = Tensor::Zeros(dtype, {3, 2});
    tensor.view().Store(1.5f, 2, 1);
    EXPECT_EQ(tensor.view().Load(2, 1), 1.5f);
    EXPECT_EQ(tensor.view().Load(2, 0), 0.0f);
    tensor.view().Store(1.0f + 0x1p-12f, 0, 0);
    EXPECT_EQ(tensor.view().Load(0, 0), dtype == DType::kF32 ? 1.0f + 0x1p-12f : 1.0f);
  }
}

TEST(View, ConstFromMutable) {
  std::vector<Bf16> values(6);
  const View view(values.data(), {2, 3});
  const ConstView constant = view;
  EXPECT_EQ(constant.Data(), view.Data());
  EXPECT_EQ(constant.dtype(), DType::kBF16);
  static_assert(!std::is_convertible_v<ConstView, View>);
  const ConstView from_const_pointer(static_cast<const Bf16*>(values.data()), {2, 3});
  EXPECT_EQ(from_const_pointer.DataAs<Bf16>(), values.data());
}

TEST(Tensor, OwnsAlignedMemory) {
  Tensor tensor(DType::kF16, {5, 7});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.DataAs<F16>()) % kBufferAlignment, 0u);
  EXPECT_EQ(tensor.view().strides(), ContiguousStrides({5, 7}));
  const void* data = tensor.view().Data();
  const Tensor moved = std::move(tensor);
  EXPECT_EQ(moved.view().Data(), data);
  EXPECT_EQ(Tensor().Elements(), 0);
}

TEST(TensorDeathTest, ReadingAsAnotherTypeIsABug) {
  const Tensor tensor(DType::kF16, {1});
  EXPECT_DEATH(tensor.DataAs<float>(), "f16 read as f32");
}

}  // namespace
}  // namespace equitile

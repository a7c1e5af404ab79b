// Which matrices stay int16 where linear layers compute in int8, and what that gains: a checkpoint
// that computes what it did, but with an input of a layer that is small and whose weights are
// large.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <list>
#include <string>
#include <vector>

#include "equitile/base/rng.h"
#include "equitile/io/arrays/safetensors.h"
#include "equitile/model/wan/wan_transformer.h"
#include "equitile/model/wan/wan_transformer_testing.h"
#include "tests/in_repository.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

const std::filesystem::path kMini = InRepository("models/wan-mini/transformer");
constexpr int64_t kChannel = 70;
constexpr float kTimes = 64.0f;  // a power of two: nothing is rounded

// wan-mini, in which values of one channel of self-attention are smaller by kTimes in each of
// `blocks`, and the weights that the output's layer has for it larger.
class Planted {
 public:
  explicit Planted(int64_t blocks) {
    const TensorFiles files = TensorFiles::OpenFolder(kMini);
    std::vector<StoredTensor> tensors(files.tensors().begin(), files.tensors().end());
    for (int64_t b = 0; b < blocks; ++b) {
      const std::string name = "blocks." + std::to_string(b) + ".attn1.";
      const int64_t width = ReadWanConfig(kMini / "config.json").Width();
      Change(tensors, name + "to_v.weight", 1 / kTimes,
             [&](int64_t i) { return i / width == kChannel; });
      Change(tensors, name + "to_v.bias", 1 / kTimes, [](int64_t i) { return i == kChannel; });
      Change(tensors, name + "to_out.0.weight", kTimes,
             [&](int64_t i) { return i % width == kChannel; });
    }
    WriteSafetensors(folder_ / "diffusion_pytorch_model.safetensors", tensors);
  }

  TensorFiles Files() const { return TensorFiles::OpenFolder(folder_ / ""); }

 private:
  template <typename Chosen>
  void Change(std::vector<StoredTensor>& tensors, const std::string& name, float times,
              const Chosen& chosen) {
    for (StoredTensor& tensor : tensors) {
      if (tensor.name != name) continue;
      const std::vector<float> values = tensor.Floats();
      std::vector<std::byte>& bytes = changed_.emplace_back();
      for (size_t i = 0; i < values.size(); ++i) {
        const float x = chosen(static_cast<int64_t>(i)) ? times * values[i] : values[i];
        Append(x, tensor.type, bytes);
      }
      tensor.bytes = bytes;
    }
  }

  static void Append(float x, StoredType type, std::vector<std::byte>& bytes) {
    const Bf16 half = FromFloat<Bf16>(x);
    const bool is_half = type == StoredType::kBF16;
    const auto* from = is_half ? reinterpret_cast<const std::byte*>(&half)
                               : reinterpret_cast<const std::byte*>(&x);
    bytes.insert(bytes.end(), from, from + (is_half ? sizeof(half) : sizeof(x)));
  }

  TempFolder folder_;
  std::list<std::vector<std::byte>> changed_;
};

Tensor Normal(const Shape& shape, uint32_t stream) {
  Tensor tensor(DType::kF32, shape);
  const Rng rng(1, stream);
  for (int64_t i = 0; i < tensor.Elements(); ++i)
    tensor.DataAs<float>()[i] = rng.NormalAt(static_cast<uint64_t>(i));
  return tensor;
}

Tensor Velocity(const TensorFiles& files, const WanWeightTypes& types) {
  const WanConfig config = ReadWanConfig(kMini / "config.json");
  ThreadPool pool(1);
  AlignedBuffer<std::byte> bytes(WanWeights::Bytes(config, types));
  WanWeights::Pack(files, config, types, bytes.span(), pool);
  const WanWeights weights(config, types, bytes.span());
  WanTransformer transformer(config, weights, pool);
  const Tensor latent = Normal({config.in_channels, 2, 8, 8}, 1);
  const WanText text = transformer.Text(Normal({5, config.text_dim}, 2), 16);
  return testing::RunPass(transformer, {&latent, 1}, {&text, 1}, 500.0f, 1, pool);
}

double RelativeError(const Tensor& found, const Tensor& wanted) {
  double errors = 0, squares = 0;
  for (int64_t i = 0; i < wanted.Elements(); ++i) {
    const double is = wanted.DataAs<float>()[i], error = found.DataAs<float>()[i] - is;
    errors += error * error;
    squares += is * is;
  }
  return std::sqrt(errors / squares);
}

TEST(Int8Layers, WanMiniKeepsAll) {
  const WanConfig config = ReadWanConfig(kMini / "config.json");
  EXPECT_EQ(WanWeights::BlockMatrices(config), 42);
  EXPECT_TRUE(WanWeights::StayInt16(TensorFiles::OpenFolder(kMini), config).empty());
}

TEST(Int8Layers, PlantedOnesStayInt16AndTheErrorFalls) {
  const WanConfig config = ReadWanConfig(kMini / "config.json");
  const Planted planted(config.layers);
  const TensorFiles files = planted.Files();
  const std::vector<std::string> stay = WanWeights::StayInt16(files, config);
  ASSERT_EQ(std::ssize(stay), config.layers);
  for (size_t b = 0; b < stay.size(); ++b)
    EXPECT_EQ(stay[b], "blocks." + std::to_string(b) + ".attn1.to_out.0");
  EXPECT_GT(WanWeights::Bytes(config, {WeightType::kInt8, stay}),
            WanWeights::Bytes(config, WeightType::kInt8));
  EXPECT_LT(WanWeights::Bytes(config, {WeightType::kInt8, stay}),
            WanWeights::Bytes(config, WeightType::kInt16));

  const Tensor f32 = Velocity(files, WeightType::kF32);
  const TensorFiles unchanged = TensorFiles::OpenFolder(kMini);
  EXPECT_TRUE(testing::SameBits(f32, Velocity(unchanged, WeightType::kF32)));
  const double usual = RelativeError(Velocity(unchanged, WeightType::kInt8), f32),
               all_int8 = RelativeError(Velocity(files, WeightType::kInt8), f32),
               by_the_rule = RelativeError(Velocity(files, {WeightType::kInt8, stay}), f32);
  EXPECT_GT(all_int8, 1.5 * usual);
  EXPECT_LT(by_the_rule, 1.1 * usual);
}

}  // namespace
}  // namespace equitile

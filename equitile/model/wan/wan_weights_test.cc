#include "equitile/model/wan/wan_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/io/arrays/safetensors.h"
#include "tests/in_repository.h"
#include "tests/refusal.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

const std::filesystem::path kTiny = InRepository("tests/golden/tiny-wan/transformer");

WanConfig Parse(const std::string& json) {
  const TempFolder folder;
  std::ofstream(folder / "config.json") << json;
  return ReadWanConfig(folder / "config.json");
}

TEST(WanConfig, TinyAndDefaults) {
  const WanConfig tiny = ReadWanConfig(kTiny / "config.json");
  EXPECT_EQ(tiny.heads, 3);
  EXPECT_EQ(tiny.head_dim, 32);
  EXPECT_EQ(tiny.ffn_dim, 160);
  EXPECT_EQ(tiny.layers, 2);
  EXPECT_EQ(tiny.text_dim, 48);
  EXPECT_EQ(Parse("{}"), WanConfig());
  EXPECT_EQ(Parse(R"({"_class_name": "WanTransformer3DModel", "invented": [1], "eps": 1e-5})").eps,
            1e-5f);
}

// As the constructor of diffusers takes them.
TEST(WanConfig, NullAndMissing) {
  EXPECT_EQ(Parse(R"({"in_channels": 8})").out_channels, 16);
  EXPECT_EQ(Parse(R"({"in_channels": 8, "out_channels": null})").out_channels, 8);
  EXPECT_EQ(Parse(R"({"in_channels": 8, "out_channels": 0})").out_channels, 8);
  EXPECT_TRUE(Parse("{}").cross_attn_norm);
  EXPECT_FALSE(Parse(R"({"cross_attn_norm": null})").cross_attn_norm);
  EXPECT_EQ(Parse(R"({"qk_norm": null, "pos_embed_seq_len": 514})"), WanConfig());  // not looked at
  EXPECT_THROW(Parse(R"({"num_layers": null})"), InputError);
  EXPECT_THROW(Parse(R"({"out_channels": "16"})"), InputError);
}

TEST(WanConfig, RefusesOtherModels) {
  EXPECT_THROW(Parse(R"({"_class_name": "FluxTransformer2DModel"})"), InputError);
  for (const char* key : {"image_dim", "added_kv_proj_dim"}) {
    const std::string message = Refusal([&] { Parse(fmt::format(R"({{"{}": 1280}})", key)); });
    EXPECT_NE(message.find(key), std::string::npos) << message;
    EXPECT_NO_THROW(Parse(fmt::format(R"({{"{}": null}})", key)));
  }
  for (const char* json :
       {R"({"attention_head_dim": 12})", R"({"num_layers": 0})", R"({"patch_size": [2, 2]})",
        R"({"num_attention_heads": "12"})", R"({"freq_dim": 7})", R"({"patch_size": [1, 0, 2]})"}) {
    EXPECT_THROW(Parse(json), InputError) << json;
  }
}

TEST(WanConfig, SizesWithoutReasonAreNamed) {
  for (const auto& [json, key] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"num_layers": 1048576})", "'num_layers' holds 1048576"},
           {R"({"num_attention_heads": 524288, "attention_head_dim": 512})",
            "'num_attention_heads' holds 524288"},
           {R"({"num_attention_heads": 513})", "'num_attention_heads' holds 513"},
           {R"({"patch_size": [64, 64, 64]})", "'patch_size'"},
           {R"({"in_channels": 1048576})", "'in_channels' holds"},
           {R"({"out_channels": 1048576})", "'out_channels' holds"},
           {R"({"ffn_dim": 9223372036854775807})", "'ffn_dim' holds"}}) {
    const std::string message = Refusal([&] { Parse(json); });
    EXPECT_NE(message.find(key), std::string::npos) << json << ": " << message;
  }
}

// All bounds at once: no count of parameters or bytes wraps.
TEST(WanConfig, TheLargestThatIsTakenCanBeCounted) {
  const WanConfig largest = Parse(
      R"({"patch_size": [1, 8, 8], "num_attention_heads": 512, "attention_head_dim": 128,
          "in_channels": 16384, "out_channels": 16384, "text_dim": 1048576, "freq_dim": 1048576,
          "ffn_dim": 1048576, "num_layers": 1000, "rope_max_seq_len": 1048576})");
  const double d = 65536, size = 1048576;
  const double matrices = (3 * size + 8 * d) * d + 1000 * (8 * d * d + 2 * d * size);
  const auto parameters = static_cast<double>(largest.Parameters());
  EXPECT_NEAR(parameters / matrices, 1.0, 1e-2);
  EXPECT_NEAR(
      static_cast<double>(WanWeights::Bytes(largest, WeightType::kF32)) / (4.0 * parameters), 1.0,
      1e-3);
}

// Parameter counts and costs as published for both sizes.
TEST(WanConfig, Shapes) {
  const WanConfig small = ParseWanShape("wan-1.3b"), large = ParseWanShape("wan-14b");
  EXPECT_EQ(small.Parameters(), 1'418'996'800);
  EXPECT_EQ(large.Parameters(), 14'288'491'584);
  const WanFlops flops = CountWanFlops(small, 32760, 512);
  EXPECT_NEAR(flops.self_attention / flops.Total(), 0.699, 0.002);
  EXPECT_NEAR(flops.Total(), 283e12, 2e12);
  EXPECT_EQ(ParseWanShape("wan-1.3b,layers=2").layers, 2);
  for (const char* text : {"wan", "wan-1.3b,", "wan-1.3b,layers=", "wan-1.3b,layers=0",
                           "wan-1.3b,layers=2x", "wan-14b,heads=2"}) {
    EXPECT_THROW(ParseWanShape(text), InputError) << text;
  }
}

// The tiny checkpoint with something changed, in one file.
class Changed {
 public:
  explicit Changed(const std::function<void(std::vector<StoredTensor>&)>& change) {
    const TensorFiles files = TensorFiles::OpenFolder(kTiny);
    std::vector<StoredTensor> tensors(files.tensors().begin(), files.tensors().end());
    change(tensors);
    WriteSafetensors(folder_ / "diffusion_pytorch_model.safetensors", tensors);
  }

  std::string Message(WeightType type = WeightType::kF32) const {
    return Refusal([&] {
      const WanConfig config = ReadWanConfig(kTiny / "config.json");
      AlignedBuffer<std::byte> bytes(WanWeights::Bytes(config, type));
      ThreadPool pool(2);
      WanWeights::Pack(TensorFiles::OpenFolder(folder_ / ""), config, type, bytes.span(), pool);
    });
  }

 private:
  TempFolder folder_;
};

StoredTensor& Named(std::vector<StoredTensor>& tensors, std::string_view name) {
  return *std::find_if(tensors.begin(), tensors.end(),
                       [&](const StoredTensor& tensor) { return tensor.name == name; });
}

TEST(WanWeights, NamesWhatIsWrong) {
  const std::string name = "blocks.1.attn1.to_k.weight";
  auto expect = [](const std::string& message, std::initializer_list<const char*> parts) {
    for (const char* part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << message << " lacks " << part;
    }
  };
  EXPECT_EQ(Changed([](auto&) {}).Message(), "");
  expect(Changed([&](auto& tensors) {
           std::erase_if(tensors, [&](const StoredTensor& t) { return t.name == name; });
         }).Message(),
         {name.c_str()});
  expect(Changed([&](auto& tensors) {
           Named(tensors, name).shape = {48, 192};
         }).Message(),
         {name.c_str(), "[48, 192]", "[96, 96]"});
  expect(Changed([&](auto& tensors) { Named(tensors, name).type = StoredType::kI32; }).Message(),
         {name.c_str(), "I32"});
}

TEST(WanWeights, NamesTheTensorThatIsNotFinite) {
  // In matrices (alone, and first, middle and last of a stack), in a bias, and in a table.
  for (const char* name :
       {"blocks.0.ffn.net.0.proj.weight", "blocks.1.attn1.to_q.weight",
        "blocks.1.attn1.to_k.weight", "blocks.1.attn1.to_v.weight", "blocks.0.attn1.to_q.bias",
        "scale_shift_table", "patch_embedding.weight"}) {
    for (float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      std::vector<std::byte> values;
      const Changed changed([&](auto& tensors) {
        StoredTensor& tensor = Named(tensors, name);
        values.assign(tensor.bytes.begin(), tensor.bytes.end());
        std::memcpy(values.data() + values.size() - sizeof(bad), &bad, sizeof(bad));
        tensor.bytes = values;
      });
      for (WeightType type : kWeightTypes) {
        EXPECT_NE(changed.Message(type).find(name), std::string::npos) << changed.Message(type);
      }
    }
  }
}

TEST(WanWeights, OneRelocatableRange) {
  const WanConfig config = ReadWanConfig(kTiny / "config.json");
  ThreadPool pool(3);
  AlignedBuffer<std::byte> bytes(WanWeights::Bytes(config, WeightType::kBF16));
  AlignedBuffer<std::byte> moved(bytes.size());
  int64_t last = 0;
  WanWeights::Pack(TensorFiles::OpenFolder(kTiny), config, WeightType::kBF16, bytes.span(), pool,
                   [&](int64_t done, int64_t total) {
                     EXPECT_GT(done, last);
                     EXPECT_LE(done, total);
                     last = done;
                   });
  std::memcpy(moved.data(), bytes.data(), static_cast<size_t>(bytes.size()));
  const WanWeights weights(config, WeightType::kBF16, moved.span());
  const float* bias = weights.blocks[1].qkv.bias.data();
  EXPECT_GE(reinterpret_cast<const std::byte*>(bias), moved.data());
  EXPECT_LT(reinterpret_cast<const std::byte*>(bias), moved.data() + moved.size());
  EXPECT_EQ(weights.blocks[1].qkv.weights.Out(), 3 * 96);
  const TensorFiles files = TensorFiles::OpenFolder(kTiny);
  EXPECT_EQ(bias[96], files["blocks.1.attn1.to_k.bias"].Floats()[0]);
  EXPECT_THROW(WanWeights(config, WeightType::kF32, moved.span()), InputError);
  EXPECT_THROW(WanWeights(config, WeightType::kBF16, moved.span().subspan(0, 1000)), InputError);
}

TEST(WanWeights, RandomDoesNotDependOnThreads) {
  WanConfig config = ReadWanConfig(kTiny / "config.json");
  config.layers = 1;
  AlignedBuffer<std::byte> one =
      AlignedBuffer<std::byte>::Zeroed(WanWeights::Bytes(config, WeightType::kF32));
  AlignedBuffer<std::byte> three = AlignedBuffer<std::byte>::Zeroed(one.size());
  ThreadPool pool1(1), pool3(3);
  WanWeights::PackRandom(config, WeightType::kF32, 4, one.span(), pool1);
  WanWeights::PackRandom(config, WeightType::kF32, 4, three.span(), pool3);
  EXPECT_EQ(std::memcmp(one.data(), three.data(), static_cast<size_t>(one.size())), 0);
}

}  // namespace
}  // namespace equitile

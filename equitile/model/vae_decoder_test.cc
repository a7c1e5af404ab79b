// The decoder against what diffusers computes from the same checkpoint (tests/golden/README.md:
// layout and tolerances), and its bits on several threads and ranks.
#include "equitile/model/vae_decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/comm/threads/run_ranks.h"
#include "equitile/io/safetensors.h"

namespace equitile {
namespace {

const std::filesystem::path kGolden = std::filesystem::path(EQUITILE_TEST_DATA) / "../golden";

const VaeWeights& TinyWeights() {
  static const VaeWeights weights = [] {
    ThreadPool pool(2);
    return LoadVaeWeights(kGolden / "tiny-wan/vae", pool);
  }();
  return weights;
}

const TensorFiles& GoldenFile() {
  static const TensorFiles file = TensorFiles::OpenFile(kGolden / "vae.safetensors");
  return file;
}

struct Clip {
  std::vector<float> frames;  // [F][H][W][3]
  // Per latent frame and stage: [frames][H][W][channels].
  std::vector<std::map<std::string, std::vector<float>>> stages;
  int64_t count = 0, bytes = 0;
};

Clip Decode(const Tensor& latents, int threads, Communicator* comm = nullptr, bool tapped = false) {
  ThreadPool pool(threads);
  VaeDecoder decoder(TinyWeights(), latents.shape()[2], latents.shape()[3], pool, comm);
  Clip clip;
  const auto sink = [&](int64_t frame, std::span<const float> rgb) {
    EXPECT_EQ(frame, clip.count++);
    EXPECT_EQ(static_cast<int64_t>(rgb.size()), decoder.Height() * decoder.Width() * 3);
    clip.frames.insert(clip.frames.end(), rgb.begin(), rgb.end());
  };
  const auto tap = [&](const VaeStage& stage) {
    std::vector<float>& to = clip.stages.back()[std::string(stage.name)];
    for (int64_t y = 0; y < stage.plane.height; ++y) {
      for (int64_t x = 0; x < stage.plane.width; ++x) {
        const float* p = stage.pixels + y * stage.plane.RowStride() + x * stage.plane.Pixel();
        to.insert(to.end(), p, p + stage.plane.channels);
      }
    }
  };
  for (int64_t f = 0; f < latents.shape()[1]; ++f) {
    clip.stages.emplace_back();
    decoder.Push(latents.view().Select(1, f), sink, tapped ? VaeTap(tap) : VaeTap());
  }
  clip.bytes = decoder.Bytes();
  return clip;
}

// Stored [channels, frames, height, width], computed [frames, height, width, channels].
void ExpectNear(const std::vector<float>& computed, const StoredTensor& stored,
                const std::string& name, double tolerance = 3e-5) {
  const std::vector<float> expected = stored.Floats();
  ASSERT_EQ(computed.size(), expected.size()) << name;
  double squares = 0.0, worst = 0.0;
  for (float value : expected) squares += static_cast<double>(value) * value;
  const double rms = std::sqrt(squares / static_cast<double>(expected.size()));
  const auto channels = static_cast<size_t>(stored.shape[0]);
  const size_t pixels = expected.size() / channels;
  for (size_t p = 0; p < pixels; ++p) {
    for (size_t c = 0; c < channels; ++c) {
      const double error =
          std::fabs(static_cast<double>(computed[p * channels + c]) - expected[c * pixels + p]);
      if (!(error <= worst)) worst = error;
    }
  }
  EXPECT_LE(worst / rms, tolerance) << name;
}

std::vector<std::string> DecodeCases() {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : GoldenFile().tensors()) {
    const size_t end = tensor.name.find(".latent");
    if (tensor.name.starts_with("decode_") && end + 7 == tensor.name.size()) {
      names.push_back(tensor.name.substr(0, end));
    }
  }
  return names;
}

TEST(VaeDecoder, FramesOfDiffusers) {
  const auto cases = DecodeCases();
  ASSERT_GE(cases.size(), 3u);
  for (const std::string& name : cases) {
    const Clip clip = Decode(GoldenFile()[name + ".latent"].ToF32(), 2);
    ExpectNear(clip.frames, GoldenFile()[name + ".frames"], name);
    std::vector<uint8_t> bytes(clip.frames.size());
    ToBytes(clip.frames, bytes);
    const auto expected = GoldenFile()[name + ".frames_uint8"].bytes;
    ASSERT_EQ(bytes.size(), expected.size());
    size_t off = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      const int difference = std::abs(int{bytes[i]} - static_cast<int>(expected[i]));
      ASSERT_LE(difference, 1) << name << " at " << i;
      off += difference != 0 ? 1 : 0;
    }
    EXPECT_LE(static_cast<double>(off), 1e-3 * static_cast<double>(bytes.size())) << name;
  }
}

TEST(VaeDecoder, StagesOfDiffusers) {
  const std::string name = "decode_2x2x3";
  const Clip clip = Decode(GoldenFile()[name + ".latent"].ToF32(), 2, nullptr, true);
  std::vector<float> denormalised, post_quant;
  for (const auto& stages : clip.stages) {
    const auto append = [](std::vector<float>& to, const std::vector<float>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(denormalised, stages.at("latent_denormalised"));
    append(post_quant, stages.at("post_quant_conv"));
  }
  ExpectNear(denormalised, GoldenFile()[name + ".latent_denormalised"], "denormalised");
  ExpectNear(post_quant, GoldenFile()[name + ".chunk0.post_quant_conv"], "post_quant_conv");
  for (size_t chunk : {0, 1}) {
    for (const char* stage :
         {"conv_in", "mid_block", "up_block0", "up_block1", "up_block2", "up_block3", "conv_out"}) {
      const std::string tensor = fmt::format("{}.chunk{}.{}", name, chunk, stage);
      ExpectNear(clip.stages[chunk].at(stage), GoldenFile()[tensor], tensor);
    }
  }
}

bool SameBits(const Clip& a, const Clip& b) {
  return a.frames.size() == b.frames.size() &&
         std::memcmp(a.frames.data(), b.frames.data(), a.frames.size() * sizeof(float)) == 0;
}

TEST(VaeDecoder, SameBitsOnAnyNumberOfThreads) {
  for (const std::string& name : DecodeCases()) {
    const Tensor latents = GoldenFile()[name + ".latent"].ToF32();
    const Clip one = Decode(latents, 1);
    for (int threads : {2, 3}) EXPECT_TRUE(SameBits(one, Decode(latents, threads))) << name;
  }
}

// Fewer ranks than rows of latents, as many, and more.
TEST(VaeDecoder, SameBitsOnAnyNumberOfRanks) {
  for (const std::string& name : DecodeCases()) {
    const Tensor latents = GoldenFile()[name + ".latent"].ToF32();
    const Clip one = Decode(latents, 1);
    for (int32_t ranks : {2, 3, 5}) {
      Clip several;
      RunRanks(ranks, [&](Communicator& comm) {
        Clip clip = Decode(latents, comm.rank() % 2 + 1, &comm);
        if (comm.rank() == 0) {
          several = std::move(clip);
        } else {
          EXPECT_TRUE(clip.frames.empty());
        }
      });
      EXPECT_TRUE(SameBits(one, several)) << name << " on " << ranks << " ranks";
    }
  }
}

TEST(VaeDecoder, MemoryDoesNotDependOnLength) {
  Tensor longer = Tensor::Zeros(DType::kF32, {16, 6, 3, 2});
  Tensor shorter = Tensor::Zeros(DType::kF32, {16, 3, 3, 2});
  const Clip clip = Decode(longer, 2);
  EXPECT_EQ(clip.bytes, Decode(shorter, 2).bytes);
  EXPECT_EQ(clip.count, TinyWeights().config.Frames(6));
}

TEST(VaeDecoder, WrongLatentsAreRefused) {
  ThreadPool pool(1);
  VaeDecoder decoder(TinyWeights(), 2, 3, pool);
  const auto sink = [](int64_t, std::span<const float>) {};
  EXPECT_THROW(decoder.Push(Tensor(DType::kF32, {16, 3, 2}), sink), InputError);
  EXPECT_THROW(decoder.Push(Tensor(DType::kBF16, {16, 2, 3}), sink), InputError);
  EXPECT_THROW(VaeDecoder(TinyWeights(), 0, 3, pool), InputError);
}

}  // namespace
}  // namespace equitile

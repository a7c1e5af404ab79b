// The decoder against what diffusers computes from the same checkpoint (tests/golden/README.md:
// layout and tolerances), and its bits on several threads and ranks.
#include "equitile/model/vae/vae_decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/base/rng.h"
#include "equitile/comm/threads/run_ranks.h"
#include "equitile/io/arrays/safetensors.h"
#include "equitile/model/golden/golden_stages.h"
#include "tests/in_repository.h"

namespace equitile {
namespace {

const std::filesystem::path kGolden = InRepository("tests/golden");

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
  VaeStages stages;
  int64_t count = 0, bytes = 0;
};

Clip Decode(const Tensor& latents, int threads, Communicator* comm = nullptr, bool tapped = false,
            const VaeWeights& weights = TinyWeights()) {
  ThreadPool pool(threads);
  VaeDecoder decoder(weights, latents.shape()[2], latents.shape()[3], pool, comm);
  Clip clip{.stages = VaeStages(decoder, latents, tapped)};
  const auto frame = static_cast<size_t>(decoder.Height() * decoder.Width() * 3);
  EXPECT_EQ(clip.stages.frames().size() % frame, 0u);
  clip.count = static_cast<int64_t>(clip.stages.frames().size() / frame);
  clip.bytes = decoder.Bytes();
  return clip;
}

void ExpectNear(const VaeStages& stages, const std::string& clip, const std::string& what) {
  const std::vector<float> expected = GoldenFile()[clip + "." + what].Floats();
  const std::vector<float> computed = stages.InFileLayout(what);
  ASSERT_EQ(computed.size(), expected.size()) << clip << " " << what;
  double squares = 0.0, worst = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    squares += static_cast<double>(expected[i]) * expected[i];
    const double error = std::fabs(static_cast<double>(computed[i]) - expected[i]);
    if (error > worst || std::isnan(error)) worst = error;
  }
  const double rms = std::sqrt(squares / static_cast<double>(expected.size()));
  EXPECT_LE(worst / rms, 3e-5) << clip << " " << what;
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
    ExpectNear(clip.stages, name, "frames");
    std::vector<uint8_t> bytes(clip.stages.frames().size());
    ToBytes(clip.stages.frames(), bytes);
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
  ExpectNear(clip.stages, name, "latent_denormalised");
  ExpectNear(clip.stages, name, "chunk0.post_quant_conv");
  for (int chunk : {0, 1}) {
    for (const char* stage :
         {"conv_in", "mid_block", "up_block0", "up_block1", "up_block2", "up_block3", "conv_out"}) {
      ExpectNear(clip.stages, name, fmt::format("chunk{}.{}", chunk, stage));
    }
  }
}

bool SameBits(const Clip& a, const Clip& b) {
  const std::vector<float>&x = a.stages.frames(), &y = b.stages.frames();
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

TEST(VaeDecoder, SameBitsOnAnyNumberOfThreads) {
  for (const std::string& name : DecodeCases()) {
    const Tensor latents = GoldenFile()[name + ".latent"].ToF32();
    const Clip one = Decode(latents, 1);
    for (int threads : {2, 3}) EXPECT_TRUE(SameBits(one, Decode(latents, threads))) << name;
  }
}

// Packed for every use instead of once.
TEST(VaeDecoder, SameBitsFromWeightsThatAreNotKept) {
  ThreadPool pool(2);
  const VaeWeights weights = LoadVaeWeights(kGolden / "tiny-wan/vae", pool, Compute::kF32, 0);
  EXPECT_LT(weights.Bytes(), TinyWeights().Bytes() / 10);
  for (const std::string& name : DecodeCases()) {
    const Tensor latents = GoldenFile()[name + ".latent"].ToF32();
    EXPECT_TRUE(SameBits(Decode(latents, 2), Decode(latents, 3, nullptr, false, weights))) << name;
  }
}

// Frames of int16 are 50 dB from those of f32 (of [-1, 1]: a peak of 2), with the same bits on
// threads, on ranks and from weights that are not kept.
TEST(VaeDecoder, Int16IsNearAndTheSameEverywhere) {
  ThreadPool pool(2);
  const VaeWeights weights = LoadVaeWeights(kGolden / "tiny-wan/vae", pool, Compute::kInt16),
                   not_kept = LoadVaeWeights(kGolden / "tiny-wan/vae", pool, Compute::kInt16, 0);
  for (const std::string& name : DecodeCases()) {
    const Tensor latents = GoldenFile()[name + ".latent"].ToF32();
    const Clip f32 = Decode(latents, 1), one = Decode(latents, 1, nullptr, false, weights);
    EXPECT_FALSE(SameBits(f32, one));
    double squares = 0.0;
    for (size_t i = 0; i < f32.stages.frames().size(); ++i) {
      const double error = one.stages.frames()[i] - f32.stages.frames()[i];
      squares += error * error;
    }
    const double mean = squares / static_cast<double>(f32.stages.frames().size());
    EXPECT_GT(10.0 * std::log10(4.0 / mean), 50.0) << name;
    EXPECT_TRUE(SameBits(one, Decode(latents, 3, nullptr, false, weights))) << name;
    EXPECT_TRUE(SameBits(one, Decode(latents, 2, nullptr, false, not_kept))) << name;
    std::optional<Clip> several;
    RunRanks(3, [&](Communicator& comm) {
      Clip clip = Decode(latents, comm.rank() % 2 + 1, &comm, false, weights);
      if (comm.rank() == 0) several = std::move(clip);
    });
    EXPECT_TRUE(SameBits(one, *several)) << name;
  }
}

// Fewer ranks than rows of latents, as many, and more.
TEST(VaeDecoder, SameBitsOnAnyNumberOfRanks) {
  for (const std::string& name : DecodeCases()) {
    const Tensor latents = GoldenFile()[name + ".latent"].ToF32();
    const Clip one = Decode(latents, 1);
    for (int32_t ranks : {2, 3, 5}) {
      std::optional<Clip> several;
      RunRanks(ranks, [&](Communicator& comm) {
        Clip clip = Decode(latents, comm.rank() % 2 + 1, &comm);
        if (comm.rank() == 0) {
          several = std::move(clip);
        } else {
          EXPECT_TRUE(clip.stages.frames().empty());
        }
      });
      EXPECT_TRUE(SameBits(one, *several)) << name << " on " << ranks << " ranks";
    }
  }
}

// Rows that do not divide, one row, one column; ranks without rows.
TEST(VaeDecoder, SameBitsOnRanksWhereRowsDoNotDivide) {
  for (const auto& [height, width] : {std::pair{7, 2}, {4, 3}, {1, 5}, {5, 1}}) {
    Tensor latents(DType::kF32, {16, 2, height, width});
    Rng rng(11);
    const View flat = latents.view().Reshape({latents.Elements()});
    for (int64_t i = 0; i < latents.Elements(); ++i) flat.Store(rng.Normal(), i);
    const Clip one = Decode(latents, 1);
    for (int32_t ranks : {1, 2, 3, 5, 8}) {
      std::optional<Clip> several;
      RunRanks(ranks, [&](Communicator& comm) {
        Clip clip = Decode(latents, 1, &comm);
        if (comm.rank() == 0) several = std::move(clip);
      });
      EXPECT_TRUE(SameBits(one, *several)) << height << "x" << width << " on " << ranks << " ranks";
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

#include "equitile/model/vae/vae_tiling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/base/rng.h"
#include "equitile/comm/threads/run_ranks.h"
#include "equitile/io/arrays/safetensors.h"
#include "tests/in_repository.h"

namespace equitile {
namespace {

const std::filesystem::path kData = InRepository("tests/data");

const VaeWeights& TinyWeights() {
  static const VaeWeights weights = [] {
    ThreadPool pool(2);
    return LoadVaeWeights(kData / "../golden/tiny-wan/vae", pool);
  }();
  return weights;
}

std::vector<float> Tiled(const Tensor& latents, const VaeTiling& tiling, int threads,
                         Communicator* comm = nullptr) {
  ThreadPool pool(threads);
  std::vector<float> frames;
  DecodeVideoTiled(TinyWeights(), latents, tiling, pool, comm,
                   [&](int64_t, std::span<const float> rgb) {
                     frames.insert(frames.end(), rgb.begin(), rgb.end());
                   });
  return frames;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// [3, F, H, W] as stored, [F][H][W][3] as computed; tests/golden/README.md has the tolerance.
TEST(VaeTiling, FramesOfDiffusers) {
  const TensorFiles file = TensorFiles::OpenFile(kData / "vae_tiled.safetensors");
  for (int64_t stride : {16, 24}) {
    const std::string name = fmt::format("stride{}.", stride);
    const std::vector<float> frames =
        Tiled(file[name + "latent"].ToF32(), {.tile = 32, .stride = stride}, 2);
    const std::vector<float> expected = file[name + "frames"].Floats();
    ASSERT_EQ(frames.size(), expected.size());
    const size_t pixels = frames.size() / 3;
    double squares = 0.0, worst = 0.0;
    for (size_t i = 0; i < frames.size(); ++i) {
      const double e = expected[i % 3 * pixels + i / 3];
      squares += e * e;
      const double error = std::fabs(frames[i] - e);
      if (error > worst || std::isnan(error)) worst = error;
    }
    EXPECT_LE(worst / std::sqrt(squares / static_cast<double>(frames.size())), 3e-5) << name;
  }
}

// Also where tiles begin closer together than they are large.
TEST(VaeTiling, OneTileIsTheWholePicture) {
  const TensorFiles file = TensorFiles::OpenFile(kData / "vae_tiled.safetensors");
  const Tensor latents = file["stride16.latent"].ToF32();
  ThreadPool pool(1);
  std::vector<float> whole;
  DecodeVideo(TinyWeights(), latents, pool, nullptr, [&](int64_t, std::span<const float> rgb) {
    whole.insert(whole.end(), rgb.begin(), rgb.end());
  });
  for (const VaeTiling& tiling : {VaeTiling{64, 56}, VaeTiling{56, 48}, VaeTiling{56, 8}}) {
    EXPECT_TRUE(SameBits(whole, Tiled(latents, tiling, 1))) << tiling.tile << " " << tiling.stride;
  }
  EXPECT_FALSE(SameBits(whole, Tiled(latents, {.tile = 48, .stride = 48}, 1)));
}

TEST(VaeTiling, SameBitsOnThreadsAndRanks) {
  const TensorFiles file = TensorFiles::OpenFile(kData / "vae_tiled.safetensors");
  const Tensor latents = file["stride24.latent"].ToF32();
  const VaeTiling tiling = {.tile = 32, .stride = 24};
  const std::vector<float> one = Tiled(latents, tiling, 1);
  EXPECT_TRUE(SameBits(one, Tiled(latents, tiling, 3)));
  for (int32_t ranks : {2, 11}) {
    std::vector<float> several;
    RunRanks(ranks, [&](Communicator& comm) {
      std::vector<float> frames = Tiled(latents, tiling, 1, &comm);
      if (comm.rank() == 0) several = std::move(frames);
    });
    EXPECT_TRUE(SameBits(one, several)) << ranks;
  }
}

// Last tiles of one latent, smaller than the overlap; one row of tiles; more ranks than tiles.
TEST(VaeTiling, OddSizesOnThreadsAndRanks) {
  for (const auto& [height, width] : {std::pair{5, 7}, {1, 9}, {7, 2}}) {
    Tensor latents(DType::kF32, {16, 2, height, width});
    Rng rng(5);
    const View flat = latents.view().Reshape({latents.Elements()});
    for (int64_t i = 0; i < latents.Elements(); ++i) flat.Store(rng.Normal(), i);
    for (const VaeTiling& tiling : {VaeTiling{24, 16}, VaeTiling{32, 16}, VaeTiling{16, 16}}) {
      const std::vector<float> one = Tiled(latents, tiling, 1);
      EXPECT_EQ(static_cast<int64_t>(one.size()), 5 * height * 8 * width * 8 * 3);
      EXPECT_TRUE(std::all_of(one.begin(), one.end(), [](float x) { return std::fabs(x) <= 1; }));
      EXPECT_TRUE(SameBits(one, Tiled(latents, tiling, 2)));
      for (int32_t ranks : {3, 17}) {
        std::vector<float> several;
        RunRanks(ranks, [&](Communicator& comm) {
          std::vector<float> frames = Tiled(latents, tiling, 1, &comm);
          if (comm.rank() == 0) several = std::move(frames);
        });
        EXPECT_TRUE(SameBits(one, several)) << height << "x" << width << " on " << ranks;
      }
    }
  }
}

// Whenever they are told to end, all ranks do, also those without a tile or a row of their own, and
// nobody waits; without an answer of no they reach the end.
TEST(VaeTiling, AllRanksEndTogetherWhenTold) {
  Tensor latents(DType::kF32, {16, 2, 5, 7});
  Rng rng(7);
  const View flat = latents.view().Reshape({latents.Elements()});
  for (int64_t i = 0; i < latents.Elements(); ++i) flat.Store(rng.Normal(), i);
  for (const bool tiled : {false, true}) {
    for (const int32_t ranks : {1, 2, 3, 7}) {
      const int64_t tiles = tiled ? 3 * 4 : 1;
      const int64_t rounds = tiled ? (tiles + ranks - 1) / ranks : 1;
      const int64_t questions = rounds * latents.shape()[1];
      for (int64_t last = 0; last <= questions; ++last) {
        std::vector<int64_t> asked(static_cast<size_t>(ranks));
        int64_t frames = 0;
        RunRanks(ranks, [&](Communicator& comm) {
          ThreadPool pool(1);
          int64_t& count = asked[static_cast<size_t>(comm.rank())];
          const auto go_on = [&] { return count++ < last; };
          const auto sink = [&](int64_t, std::span<const float>) { ++frames; };
          const bool is_whole =
              tiled ? DecodeVideoTiled(TinyWeights(), latents, {24, 16}, pool, &comm, sink, go_on)
                    : DecodeVideo(TinyWeights(), latents, pool, &comm, sink, go_on);
          EXPECT_EQ(is_whole, last == questions);
        });
        for (int64_t count : asked) EXPECT_EQ(count, std::min(last + 1, questions));
        EXPECT_EQ(frames, last == questions ? 5 : tiled || last == 0 ? 0 : 1);
      }
    }
  }
}

TEST(VaeTiling, WhatDoesNotFitIsRefused) {
  const Tensor latents = Tensor::Zeros(DType::kF32, {16, 1, 2, 2});
  for (const VaeTiling& tiling : {VaeTiling{32, 40}, VaeTiling{32, 0}, VaeTiling{33, 24}}) {
    EXPECT_THROW(Tiled(latents, tiling, 1), InputError);
  }
}

}  // namespace
}  // namespace equitile

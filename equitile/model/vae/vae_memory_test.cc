#include "equitile/model/vae/vae_memory.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "equitile/tensor/tensor.h"
#include "tests/in_repository.h"

namespace equitile {
namespace {

const VaeWeights& TinyWeights() {
  static const VaeWeights weights = [] {
    ThreadPool pool(2);
    return LoadVaeWeights(InRepository("tests/golden/tiny-wan/vae"), pool);
  }();
  return weights;
}

// What the decoder says that it took; bench/peers/diffusers_vae.py --memory sees the system's side.
TEST(VaeMemory, PredictedAsTaken) {
  for (const auto& [height, width] : {std::pair{4, 4}, {7, 5}, {3, 16}}) {
    ThreadPool pool(2);
    VaeDecoder decoder(TinyWeights(), height, width, pool);
    const Tensor latent = Tensor::Zeros(DType::kF32, {16, height, width});
    for (int i = 0; i < 3; ++i) {
      decoder.Push(latent.view(), [](int64_t, std::span<const float>) {});
    }
    const auto taken = static_cast<double>(decoder.Bytes() + TinyWeights().Bytes());
    const VaeMemory memory = PredictVaeMemory(
        TinyWeights().config, {.latent_height = height, .latent_width = width}, 1, 2);
    EXPECT_NEAR(static_cast<double>(memory.Total()) / taken, 1.0, 0.1) << height << "x" << width;
  }
}

TEST(VaeMemory, LessOnMoreRanksAndInTiles) {
  const VaeConfig wan;
  const VaeClipShape clip = {.latent_frames = 5, .latent_height = 90, .latent_width = 160};
  const VaeMemory one = PredictVaeMemory(wan, clip, 1, 2);
  VaeClipShape longer = clip;
  longer.latent_frames = 21;
  EXPECT_EQ(PredictVaeMemory(wan, longer, 1, 2).Total(), one.Total());
  EXPECT_LT(PredictVaeMemory(wan, clip, 3, 2).windows, 0.45 * static_cast<double>(one.windows));
  EXPECT_EQ(PredictVaeMemory(wan, clip, 90, 2).windows, PredictVaeMemory(wan, clip, 91, 2).windows);
  VaeClipShape tiled = clip;
  tiled.tiling = VaeTiling{};
  const VaeMemory tiles = PredictVaeMemory(wan, tiled, 1, 2);
  EXPECT_LT(tiles.windows, one.windows / 10);
  EXPECT_GT(tiles.clips, 17 * 720 * 1280 * 3 * 4);
}

}  // namespace
}  // namespace equitile

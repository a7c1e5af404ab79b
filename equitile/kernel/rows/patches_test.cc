#include "equitile/kernel/rows/patches.h"

#include <gtest/gtest.h>

#include <vector>

#include "equitile/pattern/token_place.h"
#include "equitile/tensor/tensor.h"

namespace equitile {
namespace {

Tensor Counted(const Shape& shape) {
  Tensor tensor(DType::kF32, shape);
  for (int64_t i = 0; i < tensor.Elements(); ++i) tensor.DataAs<float>()[i] = static_cast<float>(i);
  return tensor;
}

TEST(Patches, ChannelSlowestOnTheWayIn) {
  const Tensor latent = Counted({3, 2, 4, 6});
  const PatchSize patch;
  const TokenGrid grid = PatchGrid(latent, patch);
  EXPECT_EQ(grid.VideoTokens(), 2 * 2 * 3);
  std::vector<float> rows(12 * 12);
  GatherPatches(latent, patch, 0, 12, rows.data());
  for (int64_t f = 0; f < 2; ++f) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t w = 0; w < 3; ++w) {
        for (int64_t c = 0; c < 3; ++c) {
          for (int64_t dy = 0; dy < 2; ++dy) {
            for (int64_t dx = 0; dx < 2; ++dx) {
              const int64_t token = (f * 2 + h) * 3 + w, feature = c * 4 + dy * 2 + dx;
              EXPECT_EQ(rows[static_cast<size_t>(token * 12 + feature)],
                        latent.view().Load(c, f, 2 * h + dy, 2 * w + dx));
            }
          }
        }
      }
    }
  }
}

TEST(Patches, ChannelFastestOnTheWayOut) {
  const PatchSize patch = {.frames = 2, .height = 1, .width = 2};
  Tensor latent = Tensor::Zeros(DType::kF32, {3, 4, 2, 6});
  const TokenGrid grid = PatchGrid(latent, patch);
  const int64_t features = 3 * patch.Elements();
  const Tensor rows = Counted({grid.VideoTokens(), features});
  // In two calls: any token range may be written on its own.
  ScatterPatches(rows.DataAs<float>(), patch, 0, 5, latent);
  ScatterPatches(rows.DataAs<float>() + 5 * features, patch, 5, grid.VideoTokens() - 5, latent);
  for (int64_t c = 0; c < 3; ++c) {
    for (int64_t f = 0; f < 4; ++f) {
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t w = 0; w < 6; ++w) {
          const int64_t token = (f / 2 * 2 + h) * 3 + w / 2, feature = (f % 2 * 2 + w % 2) * 3 + c;
          EXPECT_EQ(latent.view().Load(c, f, h, w), rows.view().Load(token, feature));
        }
      }
    }
  }
}

// Any numbering of tokens: each row is that of the token's place, and finds its way back there.
TEST(Patches, FollowThePlacesOfTokens) {
  const PatchSize patch;
  const Tensor latent = Counted({2, 3, 4, 6});
  TokenGrid grid = PatchGrid(latent, patch);
  grid.home = TokenOrder::kHilbert;
  const std::vector<int32_t> places = PlaceOfToken(grid);
  const auto tokens = static_cast<size_t>(grid.VideoTokens());
  const size_t features = 2 * 4;
  std::vector<float> natural(tokens * features), rows(tokens * features);
  GatherPatches(latent, patch, 0, grid.VideoTokens(), natural.data());
  GatherPatches(latent, patch, 0, 5, rows.data(), places);
  GatherPatches(latent, patch, 5, grid.VideoTokens() - 5, rows.data() + 5 * features, places);
  Tensor there = Tensor::Zeros(DType::kF32, latent.shape());
  Tensor back = Tensor::Zeros(DType::kF32, latent.shape());
  ScatterPatches(natural.data(), patch, 0, grid.VideoTokens(), there);
  ScatterPatches(rows.data(), patch, 0, 5, back, places);
  ScatterPatches(rows.data() + 5 * features, patch, 5, grid.VideoTokens() - 5, back, places);
  bool moves = false;
  for (size_t t = 0; t < tokens; ++t) {
    const auto place = static_cast<size_t>(places[t]);
    moves = moves || place != t;
    for (size_t i = 0; i < features; ++i)
      EXPECT_EQ(rows[t * features + i], natural[place * features + i]) << t;
  }
  EXPECT_TRUE(moves);
  for (int64_t i = 0; i < latent.Elements(); ++i)
    EXPECT_EQ(back.DataAs<float>()[i], there.DataAs<float>()[i]) << i;
}

TEST(Patches, StridedLatents) {
  const Tensor latent = Counted({2, 4, 6, 3});  // [frames... last axis fastest is height here]
  const ConstView turned = latent.view().Transpose(0, 3);
  std::vector<float> rows(3 * 4);
  GatherPatches(turned, {.frames = 1, .height = 2, .width = 2}, 1, 1, rows.data());
  EXPECT_EQ(rows[0], turned.Load(0, 0, 2, 0));
  EXPECT_EQ(rows[1], turned.Load(0, 0, 2, 1));
  EXPECT_EQ(rows[2], turned.Load(0, 0, 3, 0));
}

TEST(Patches, RefusesWhatDoesNotDivide) {
  EXPECT_THROW(PatchGrid(Counted({1, 1, 3, 2}), PatchSize()), InputError);
  EXPECT_THROW(PatchGrid(Counted({1, 0, 2, 2}), PatchSize()), InputError);
  EXPECT_THROW(PatchGrid(Counted({2, 2, 2}), PatchSize()), InputError);
}

}  // namespace
}  // namespace equitile

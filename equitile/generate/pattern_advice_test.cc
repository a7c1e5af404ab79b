#include "equitile/generate/pattern_advice.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "equitile/model/sampling/denoise.h"

namespace equitile {
namespace {

// 13 x 16 x 16 tokens of a small model, whose self-attention is about half of a step.
GenerationConfig LargeVideo() {
  GenerationConfig config;
  config.frames = 49;
  config.height = config.width = 256;
  config.steps = 20;
  return config;
}
GenerationConfig SmallVideo() {
  GenerationConfig config = LargeVideo();
  config.frames = 9;
  config.height = config.width = 64;
  return config;
}

WanConfig SmallModel() {
  WanConfig model;
  model.heads = 6;
  model.head_dim = 32;
  model.ffn_dim = 512;
  model.layers = 2;
  return model;
}

// So many of the six heads of each layer are full, the others as dense as this.
SparsityOptions OptionsOf(size_t full, HeadMode mode, double density) {
  auto file = std::make_shared<PatternFile>();
  file->grid = VideoGrid(SmallModel(), LargeVideo());
  file->predicted_speedup = 2;  // of whatever it was made for
  PatternRange& range = file->ranges.emplace_back();
  for (int layer = 0; layer < 2; ++layer) {
    auto& heads = range.layers.emplace_back(6);
    for (size_t head = full; head < 6; ++head) {
      if (mode == HeadMode::kDiagonal)
        heads[head].pattern = BandOfDensity(mode, density, file->grid, 64);
      heads[head].pattern.mode = mode;
      heads[head].density = density;
    }
  }
  SparsityOptions options;
  options.attention = ParseAttention("pattern");
  options.warm_up.dense_steps = 4;
  options.pattern = std::move(file);
  return options;
}

std::string Why(const SparsityOptions& options, const GenerationConfig& config) {
  return WhyItSavesLittle(options, config, SmallModel(), "p.json");
}

bool Says(const std::string& why, const char* what) {
  return why.find("p.json: saves less than 5 %") == 0 && why.find(what) != why.npos;
}

TEST(PatternAdvice, GoesByTheVideoAtHand) {
  const SparsityOptions sparse = OptionsOf(1, HeadMode::kDiagonal, 0.1);
  EXPECT_EQ(Why(sparse, LargeVideo()), "");
  EXPECT_TRUE(Says(Why(sparse, SmallVideo()), "self-attention is")) << Why(sparse, SmallVideo());
}

TEST(PatternAdvice, NamesWhatLimits) {
  const std::string few = Why(OptionsOf(6, HeadMode::kDiagonal, 1), LargeVideo());
  EXPECT_TRUE(Says(few, "too few sparse heads, 100 % are full")) << few;
  const std::string large = Why(OptionsOf(0, HeadMode::kDiagonal, 0.95), LargeVideo());
  EXPECT_TRUE(Says(large, "large sizes, 95 % of the blocks are kept")) << large;
  SparsityOptions late = OptionsOf(0, HeadMode::kSkip, 0);
  late.warm_up.dense_steps = 19;
  const std::string dense = Why(late, LargeVideo());
  EXPECT_TRUE(Says(dense, "95 % of the layers of all steps are dense")) << dense;
}

// Blocks that are chosen while the video is made may be few, but never less than none.
TEST(PatternAdvice, WhatIsChosenLaterIsJudgedByTheMostThatItCanSave) {
  SparsityOptions options = OptionsOf(6, HeadMode::kDiagonal, 1);
  options.attention = ParseAttention("pattern+predict");
  EXPECT_EQ(Why(options, LargeVideo()), "");
  EXPECT_TRUE(Says(Why(options, SmallVideo()), "self-attention is"));
}

}  // namespace
}  // namespace equitile

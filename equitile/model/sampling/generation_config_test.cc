#include "equitile/model/sampling/generation_config.h"

#include <gtest/gtest.h>

#include "equitile/base/error.h"
#include "tests/in_repository.h"

namespace equitile {
namespace {

TEST(GenerationConfig, ComesFromTheCheckpoint) {
  const GenerationConfig mini =
      ReadGenerationConfig(CheckpointFolder(InRepository("models/wan-mini")));
  EXPECT_EQ(mini.text_rows, 32);
  EXPECT_EQ(mini.width, 256);
  EXPECT_EQ(mini.frames, 49);
  EXPECT_EQ(mini.LatentFrames(), 13);
  const GenerationConfig wan =
      ReadGenerationConfig(CheckpointFolder(InRepository("tests/golden/tiny-wan")));
  EXPECT_EQ(wan.text_rows, 512);
  EXPECT_EQ(wan.steps, 50);
  EXPECT_EQ(wan.flow_shift, 3.0);
  EXPECT_EQ(wan.negative_prompt, "");
}

std::string Complaint(const GenerationConfig& config) {
  try {
    CheckSizes(config);
    return "";
  } catch (const InputError& error) {
    const std::string text = error.what();
    return text.substr(text.find("; ") + 2);
  }
}

TEST(GenerationConfig, NamesTheNearestSizesThatWork) {
  EXPECT_EQ(Complaint({}), "");
  EXPECT_EQ(Complaint({.width = 250}), "240 or 256 would work");
  EXPECT_EQ(Complaint({.width = 0}), "16 would work");
  EXPECT_EQ(Complaint({.width = 17}), "16 or 32 would work");
  EXPECT_EQ(Complaint({.height = -8}), "16 would work");
  EXPECT_EQ(Complaint({.height = 16390}), "16384 would work");
  EXPECT_EQ(Complaint({.frames = 0}), "1 would work");
  EXPECT_EQ(Complaint({.frames = 2}), "1 or 5 would work");
  EXPECT_EQ(Complaint({.frames = 4}), "1 or 5 would work");
  EXPECT_EQ(Complaint({.frames = 6}), "5 or 9 would work");
  EXPECT_EQ(Complaint({.frames = 5000}), "4093 would work");
  GenerationConfig crowded;
  crowded.steps = 1000;
  crowded.flow_shift = 1000;
  EXPECT_EQ(Complaint(crowded), "use fewer steps or a smaller shift");
}

TEST(GenerationConfig, RoundsFramesAsDiffusersDoes) {
  for (auto [given, made] : {std::pair(0, 1), {1, 1}, {4, 5}, {5, 5}, {7, 5}, {8, 9}, {81, 81}}) {
    EXPECT_EQ(RoundedFrames(given), made) << given;
  }
}

}  // namespace
}  // namespace equitile

#include "equitile/search/judge/validation.h"

#include <gtest/gtest.h>

namespace equitile {
namespace {

TEST(Validation, WarnsWhereOtherPromptsComeOutWellBelow) {
  ValidationResult result;
  result.psnr = {24.0, 26.0, 28.5};  // of two others, of one of its own
  EXPECT_NE(WhyNotTrusted(result, 1).find("3.5 dB below"), std::string::npos);
  result.psnr = {26.0, 27.5, 28.5};
  EXPECT_EQ(WhyNotTrusted(result, 1), "");
  EXPECT_EQ(WhyNotTrusted(result, 0), "");
  result.psnr = {30.0, 30.0, std::nullopt};  // the last one is identical
  EXPECT_NE(WhyNotTrusted(result, 1), "");
}

TEST(Validation, IsTheSameFromACheckpoint) {
  ValidationResult result;
  result.psnr = {24.0, std::nullopt};
  result.ssim = {0.9, 1};
  result.density = {0.3, 0.4};
  result.speed = {1.5, 1.25};
  result.frames = {{.frame = 2,
                    .dense = {.height = 1, .width = 2, .pixels = {1, 2, 3, 4, 5, 6}},
                    .sparse = {.height = 1, .width = 2, .pixels = {6, 5, 4, 3, 2, 1}}}};
  SourceState parts;
  result.AddTo(parts, "x.");
  const ValidationResult read = ValidationResult::From(parts, "x.");
  EXPECT_EQ(read.psnr, result.psnr);
  EXPECT_EQ(read.ssim, result.ssim);
  EXPECT_EQ(read.density, result.density);
  EXPECT_EQ(read.speed, result.speed);
  ASSERT_EQ(read.frames.size(), 1u);
  EXPECT_EQ(read.frames[0].frame, 2);
  EXPECT_EQ(read.frames[0].dense.pixels, result.frames[0].dense.pixels);
  EXPECT_EQ(read.frames[0].sparse.pixels, result.frames[0].sparse.pixels);
  parts["x.pixels"].pop_back();
  EXPECT_THROW(ValidationResult::From(parts, "x."), InputError);
}

}  // namespace
}  // namespace equitile

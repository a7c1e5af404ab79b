#include "equitile/sparsity/layer_record.h"

#include <gtest/gtest.h>

#include "tests/refusal.h"

namespace equitile {
namespace {

TEST(LayerRecord, ReadsBackWhatItWrote) {
  LayerRecord first{.step = 3, .layer = 7, .sigma = 0.1, .density = 1.0 / 3};
  first.mass_held = {0.25, 1.0 / 7};
  first.planner = "usp:2x1";
  first.rho_before = 1.7;
  first.plan_made = true;
  first.plan_seconds = 1e-5;
  first.run.seconds = 2.5;
  first.mask_bytes_sent = int64_t{1} << 33;
  first.run.bytes_sent = int64_t{1} << 40;
  const std::vector<LayerRecord> written = {first, {.step = 4}};
  const std::string text = LayerRecordsText(written);
  const std::vector<LayerRecord> read = ParseLayerRecords(text);
  ASSERT_EQ(read.size(), 2);
  EXPECT_EQ(LayerRecordsText(read), text);
  EXPECT_EQ(read[0].mass_held, first.mass_held);
  EXPECT_EQ(read[0].density, first.density);
  EXPECT_EQ(read[0].planner, "usp:2x1");
  EXPECT_TRUE(read[0].plan_made);
  EXPECT_EQ(read[0].mask_bytes_sent, int64_t{1} << 33);
  EXPECT_EQ(read[0].run.bytes_sent, int64_t{1} << 40);
  EXPECT_EQ(read[1].step, 4);
  EXPECT_TRUE(read[1].mass_held.empty());
  EXPECT_TRUE(ParseLayerRecords(LayerRecordsText({})).empty());
}

TEST(LayerRecord, ColumnsThatDoNotFitAreRefused) {
  std::string text = LayerRecordsText(std::vector<LayerRecord>(2));
  const size_t at = text.find("\"sigma\":[0.0,");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 13, "\"sigma\":[");
  EXPECT_NE(Refusal([&] { ParseLayerRecords(text); }).find("sigma"), std::string::npos);
  EXPECT_NE(Refusal([] { ParseLayerRecords("[]"); }), "");
}

}  // namespace
}  // namespace equitile

#include "equitile/sparsity/attention_spec.h"

#include <gtest/gtest.h>

#include "equitile/base/error.h"

namespace equitile {
namespace {

TEST(AttentionSpec, ReadsWhatPeopleWrite) {
  EXPECT_EQ(ParseAttention("dense").kind, AttentionKind::kDense);
  EXPECT_EQ(ParseAttention("mask:a,b:c=1.npy").file, "a,b:c=1.npy");
  const AttentionSpec by_error = ParseAttention("predict");
  EXPECT_EQ(by_error.error, 0.01);
  EXPECT_EQ(by_error.refresh, 4);
  EXPECT_EQ(by_error.tail, Tail::kMean);
  EXPECT_FALSE(ParseAttention("observe").refresh);
  const AttentionSpec tried = ParseAttention("observe:error=0.1,rows=2,orders=fhw+tiles:2x4x4");
  EXPECT_EQ(tried.error, 0.1);
  EXPECT_EQ(tried.rows, 2);
  EXPECT_EQ(tried.orders, (std::vector{TokenOrder::kFHW, TokenOrder::Tiles(2, 4, 4)}));
  const AttentionSpec predict = ParseAttention("predict:budget=layer");
  EXPECT_FALSE(predict.error);
  EXPECT_EQ(predict.mass, 0.95);
  EXPECT_EQ(predict.min, 0.05);
  EXPECT_EQ(predict.refresh, 1);
  EXPECT_EQ(predict.budget, MassBudget::kLayer);
  EXPECT_EQ(ParseAttention("observe:mass=0.9").budget, MassBudget::kRow);
  EXPECT_TRUE(predict.file.empty());
  const AttentionSpec dials = ParseAttention("predict:p.json,mass=0.9,min=0.1,refresh=4,tail=none");
  EXPECT_EQ(dials.file, "p.json");
  EXPECT_EQ(dials.mass, 0.9);
  EXPECT_EQ(dials.refresh, 4);
  EXPECT_EQ(dials.tail, Tail::kNone);
  const AttentionSpec observe = ParseAttention("observe:dir:x/p.json:mass=0.8,at=5,refresh=never");
  EXPECT_EQ(observe.file, "dir:x/p.json");
  EXPECT_EQ(observe.mass, 0.8);
  EXPECT_EQ(observe.at, 5);
  EXPECT_FALSE(observe.refresh);
  EXPECT_EQ(ParseAttention("pattern+predict:p.json").kind, AttentionKind::kPatternPredict);
  EXPECT_EQ(ParseAttention("pattern").file, "");
  EXPECT_EQ(ParseAttention("window:temporal:density=0.2").density, 0.2);
}

// A file without weights goes by mass, whatever the rule would be with weights.
TEST(AttentionSpec, AFileDecidesWhatBlocksAreChosenBy) {
  for (const char* text : {"predict:p.json", "observe:p.json", "pattern+predict:p.json",
                           "pattern+predict", "predict:p.json,refresh=4"}) {
    const AttentionSpec weighed = ParseAttention(text), old = ParseAttention(text, false);
    EXPECT_EQ(weighed.error, 0.01) << text;
    EXPECT_EQ(weighed.rows, 4) << text;
    EXPECT_FALSE(old.error) << text;
    EXPECT_GT(old.mass, 0) << text;
    EXPECT_EQ(weighed.Text(), text);
    EXPECT_FALSE(ParseAttention(old.Text()).error) << "as it was found: " << old.Text();
  }
  EXPECT_EQ(ParseAttention("predict:p.json").refresh, 4);
  EXPECT_EQ(ParseAttention("predict:p.json", false).refresh, 1);
  EXPECT_EQ(ParseAttention("predict:p.json,refresh=4", false).refresh, 4);
  EXPECT_EQ(ParseAttention("predict", false).error, 0.01) << "there is no file";
  EXPECT_FALSE(ParseAttention("pattern+predict:p.json,mass=0.9").error);
  for (const char* text : {"predict:p.json,error=0.01", "pattern+predict:error=0.02",
                           "observe:p.json,orders=fhw"}) {
    EXPECT_TRUE(ParseAttention(ParseAttention(text).Text()).error) << text;
    EXPECT_THROW(ParseAttention(ParseAttention(text).Text(), false), InputError) << text;
  }
}

TEST(AttentionSpec, TextReadsBack) {
  for (const char* text : {"dense",
                           "mask:m.npy",
                           "predict",
                           "predict:error=0.05,refresh=1",
                           "observe",
                           "observe:error=0.002,rows=8,orders=hwf+fhw,at=3",
                           "predict:mass=0.95",
                           "predict:mass=0.5,tail=none",
                           "predict:p.json,mass=0.95,min=0.25",
                           "predict:p.json,error=0.01",
                           "predict:p.json,error=0.02,refresh=4",
                           "pattern+predict:error=0.02",
                           "pattern+predict:p.json,mass=0.95",
                           "observe:mass=0.8,at=3",
                           "predict:mass=0.8,budget=row",
                           "observe:mass=0.99,budget=layer",
                           "observe:p.json,refresh=7",
                           "pattern+predict:p.json,refresh=never",
                           "pattern:p.json",
                           "svg",
                           "svg:density=0.5",
                           "radial",
                           "sta:density=0.2",
                           "sparge",
                           "window:spatial",
                           "window:temporal:density=0.4",
                           "predict:mass=0.95,tail=none,guard=0.5",
                           "oracle",
                           "oracle:density=0.4,tail=none"}) {
    EXPECT_EQ(ParseAttention(text).Text(), text);
  }
}

TEST(AttentionSpec, NamesWhatIsWrong) {
  for (const char* text : {"",
                           "dens",
                           "dense:x",
                           "mask",
                           "mask:",

                           "predict:mass=2",
                           "predict:error=0.1,mass=0.5",
                           "observe:p.json,error=0.1,mass=0.9",
                           "pattern+predict:p.json,rows=4,min=0.1",
                           "predict:rows=0",
                           "predict:orders=fhw+xyz",
                           "predict:orders=",
                           "svg:error=0.1",
                           "predict:mass=-0.1",
                           "predict:mass=0.5x",
                           "predict:at=3",
                           "predict:refresh=0",
                           "predict:tail=some",
                           "predict:budget=head",
                           "svg:budget=row",
                           "predict:guard=1.5",
                           "observe:guard=0.5",
                           "oracle:mass=0.5",
                           "oracle:density=2",
                           "radial:density=0.5",
                           "svg:f.json",
                           "window",
                           "window:diagonal",
                           "predict:mass=nan",
                           "observe:at=0"}) {
    try {
      const AttentionSpec spec = ParseAttention(text);
      ADD_FAILURE() << text << " -> " << spec.Text();
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }
}

TEST(AttentionSpec, DenseStepsAreAShareOrANumber) {
  EXPECT_EQ(ParseDenseSteps("20%", 20), 4);
  EXPECT_EQ(ParseDenseSteps("20%", 50), 10);
  EXPECT_EQ(ParseDenseSteps("20%", 21), 5);
  EXPECT_EQ(ParseDenseSteps("0%", 20), 0);
  EXPECT_EQ(ParseDenseSteps("100%", 7), 7);
  EXPECT_EQ(ParseDenseSteps("3", 20), 3);
  EXPECT_EQ(ParseDenseSteps("30", 20), 20);
  for (const char* text : {"", "%", "-1", "1.5", "101%", "a", "3 "})
    EXPECT_THROW(ParseDenseSteps(text, 20), InputError) << text;
}

TEST(AttentionSpec, CacheHasABound) {
  EXPECT_FALSE(ParseCache("none"));
  EXPECT_EQ(ParseCache("easy"), 0.05);
  EXPECT_EQ(ParseCache("easy:0.1"), 0.1);
  for (const char* text : {"", "eas", "easy:", "easy:0", "easy:-1", "easy:x", "easy:0.1y"})
    EXPECT_THROW(ParseCache(text), InputError) << text;
}

}  // namespace
}  // namespace equitile

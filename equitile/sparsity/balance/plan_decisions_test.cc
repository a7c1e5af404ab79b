#include "equitile/sparsity/balance/plan_decisions.h"

#include <gtest/gtest.h>

#include "equitile/base/error.h"

namespace equitile {
namespace {

TEST(PlanDecisions, AreWrittenShortAndReadBack) {
  PlanDecisions decisions;
  EXPECT_EQ(decisions.Text(), "");
  EXPECT_EQ(PlanDecisions::Parse("", 4), decisions);
  decisions.Add(1, ParsePlanner("ring", 4));
  for (int call = 0; call < 12; ++call) decisions.Add(1, std::nullopt);
  decisions.Add(1, ParsePlanner("dbsp+:2x2", 4));
  decisions.Add(1, ParsePlanner("dbsp:4x1", 4));
  decisions.Add(1, std::nullopt);
  decisions.Add(0, ParsePlanner("fractional", 4));
  EXPECT_EQ(decisions.Text(), "0: fractional; 1: ring +12 dbsp+:2x2 dbsp:4x1 +1");
  EXPECT_EQ(PlanDecisions::Parse(decisions.Text(), 4), decisions);
  EXPECT_EQ(decisions.Calls(0), 1);
  EXPECT_EQ(decisions.Calls(1), 16);
  EXPECT_EQ(decisions.Calls(2), 0);
  EXPECT_EQ(decisions.At(1, 12), std::nullopt);
  EXPECT_EQ(decisions.At(1, 13)->Text(), "dbsp+:2x2");
}

TEST(PlanDecisions, OtherTextsAreRefused) {
  for (const char* bad : {"x", "0: nonsense", "0: ring +", "0: ring +x", "-1: ring",
                          "0: ring +99999999999", "0: dbsp:2x2", "0:ring"}) {
    EXPECT_THROW(PlanDecisions::Parse(bad, 3), InputError) << bad;
  }
}

}  // namespace
}  // namespace equitile

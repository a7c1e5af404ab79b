#include "equitile/search/state/later_stages.h"

#include <gtest/gtest.h>

namespace equitile {
namespace {

TEST(LaterStages, AStageGoesByItsEstimateUntilItHasAPace) {
  LaterStages stages;
  stages.Expect("comparing", 10);
  stages.Expect("videos", 100);
  stages.Expect("videos", 60);
  EXPECT_EQ(stages.Steps(), 70);
  EXPECT_EQ(stages.SecondsLeft("comparing", 0, 1000, 2), 140);
  EXPECT_EQ(stages.SecondsLeft("comparing", 0, 1005, 2), 135);
  // A tenth took ten seconds: nine more, and the videos as they were expected.
  EXPECT_EQ(stages.SecondsLeft("comparing", 0.1, 1010, 2), 90 + 120);
  EXPECT_EQ(stages.SecondsLeft("comparing", 0.1, 1040, 2), 60 + 120);
}

// What an earlier process did is no part of this one's pace.
TEST(LaterStages, AResumedStageHasThePaceOfThisProcess) {
  LaterStages stages;
  stages.Expect("comparing", 10);
  stages.Expect("videos", 40);
  EXPECT_EQ(stages.SecondsLeft("videos", 0.5, 7, 1), 20);
  EXPECT_EQ(stages.SecondsLeft("videos", 0.75, 17, 1), 10);
  EXPECT_EQ(stages.Steps(), 40);
}

TEST(LaterStages, NothingIsSaidWithoutKnowledge) {
  LaterStages stages;
  EXPECT_EQ(stages.SecondsLeft("videos", 0.5, 7, 1), 0);
  stages.Expect("videos", 40);
  EXPECT_EQ(stages.SecondsLeft("videos", 0.5, 7, 0), 0);
  EXPECT_EQ(EtaText(0), "");
  EXPECT_EQ(EtaText(12.4), "  ETA 12 s");
}

}  // namespace
}  // namespace equitile

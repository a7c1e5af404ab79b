#include "equitile/sparsity/source/mask_makers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "equitile/sparsity/error/error_masks.h"
#include "equitile/sparsity/mass/predict_masks.h"
#include "equitile/sparsity/published/sparge_masks.h"
#include "equitile/sparsity/published/svg_masks.h"
#include "equitile/sparsity/source/sparsity_testing.h"

namespace equitile {
namespace {

using testing::LayerCase;
using testing::LayerWorld;
using testing::OnRanks;

struct Case {
  Lanes lanes;
  int64_t tokens;
  std::vector<int64_t> homes = {};  // see Problem; empty: as tokens are cut by default
};

HomeMap HomesOf(const Case& test, int32_t ranks) {
  return HomeMap({.ranks = ranks,
                  .lanes = test.lanes,
                  .grid = {.q_tokens = test.tokens, .kv_tokens = test.tokens, .block_tokens = 64},
                  .token_grid = {},
                  .orders = {},
                  .homes = test.homes});
}

// The last ranks have most of every item, the first ones perhaps nothing.
std::vector<int64_t> UnevenHomes(const Case& test, int32_t ranks) {
  std::vector<int64_t> homes;
  for (int64_t item = 0; item < test.lanes.batch; ++item) {
    for (int64_t rank = 0; rank < ranks; ++rank)
      homes.push_back(test.tokens * rank * rank / (int64_t{ranks} * ranks));
  }
  return homes;
}

void CheckMakers(const Case& test, int32_t ranks) {
  const HomeMap homes = HomesOf(test, ranks);
  for (const bool share : {false, true}) {
    const std::vector<int64_t> lanes = JudgedLanes(test.lanes, share, {});
    const std::vector<LaneMaker> makers = MakersOf(homes, test.lanes, lanes);
    ASSERT_EQ(makers.size(), lanes.size());
    std::vector<int64_t> made(static_cast<size_t>(ranks), 0);
    for (size_t i = 0; i < lanes.size(); ++i) {
      EXPECT_EQ(makers[i].lane, lanes[i]);  // once each
      ++made[static_cast<size_t>(makers[i].maker)];
    }
    const int64_t most = CeilDiv(std::ssize(lanes), int64_t{ranks});
    EXPECT_LE(*std::ranges::max_element(made), most);
    // Who has more of a lane makes as many as anybody may.
    for (const LaneMaker& one : makers) {
      const int64_t item = test.lanes.BatchOf(one.lane);
      const int64_t own = homes.RankTokens(Side::kQuery, one.maker, item).size();
      for (int32_t rank = 0; rank < ranks; ++rank) {
        if (homes.RankTokens(Side::kQuery, rank, item).size() > own)
          EXPECT_EQ(made[static_cast<size_t>(rank)], most) << "lane " << one.lane;
      }
    }
  }
}

TEST(MaskMakers, EveryLaneHasOneNearbyAndNobodyMakesMoreThanItsPart) {
  for (const int32_t ranks : {1, 2, 3, 5, 8, 13, 40}) {
    for (Case test : {Case{{2, 6}, 2304}, Case{{1, 12}, 3328}, Case{{2, 12}, 100}, Case{{2, 1}, 64},
                      Case{{1, 1}, 1}, Case{{3, 5}, 1000}}) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << test.lanes.batch << " x "
                                        << test.lanes.heads << " lanes, " << test.tokens);
      CheckMakers(test, ranks);
      test.homes = UnevenHomes(test, ranks);
      CheckMakers(test, ranks);
    }
  }
}

// Twelve lanes on eight ranks: two each at most, and the passes stay on their halves.
TEST(MaskMakers, PassesStayWhereTheirTokensAre) {
  const Case test{{2, 6}, 2304};
  const std::vector<int64_t> lanes = JudgedLanes(test.lanes, false, {});
  for (const int32_t ranks : {2, 4, 8, 12}) {
    for (const LaneMaker& one : MakersOf(HomesOf(test, ranks), test.lanes, lanes))
      EXPECT_EQ(one.maker / (ranks / 2), test.lanes.BatchOf(one.lane)) << "lane " << one.lane;
  }
}

TEST(MaskMakers, TurnsHaveAllLanesAndFewOfAMaker) {
  const Case test{{2, 7}, 1000};
  const std::vector<int64_t> lanes = JudgedLanes(test.lanes, false, std::vector<int64_t>{2, 5});
  EXPECT_EQ(lanes, (std::vector<int64_t>{0, 1, 3, 4, 6, 7, 8, 10, 11, 13}));
  for (const int32_t ranks : {1, 2, 3, 8}) {
    const std::vector<LaneMaker> makers = MakersOf(HomesOf(test, ranks), test.lanes, lanes);
    for (const int64_t at_once : {1, 2, 3, 20}) {
      std::vector<std::vector<int64_t>> of(static_cast<size_t>(ranks));  // lanes, in their turns
      for (const auto& turn : InTurns(makers, at_once)) {
        std::vector<int64_t> now(static_cast<size_t>(ranks), 0);
        for (const auto& [lane, maker] : turn) {
          EXPECT_LE(++now[static_cast<size_t>(maker)], at_once);
          of[static_cast<size_t>(maker)].push_back(lane);
        }
      }
      std::vector<int64_t> all;
      for (const std::vector<int64_t>& own : of) {
        EXPECT_TRUE(std::ranges::is_sorted(own));
        all.insert(all.end(), own.begin(), own.end());
      }
      std::ranges::sort(all);
      EXPECT_EQ(all, lanes);
    }
  }
}

struct Made {
  LaneMasks masks;
  int64_t bytes_sent = 0;  // by all ranks, in messages
};

template <typename MakeSource>
Made MadeOn(const LayerWorld& world, int32_t ranks, const MakeSource& make) {
  Made made;
  std::mutex mutex;
  OnRanks(ranks, [&](Communicator& comm) {
    ThreadPool pool(1);
    const auto source = make(world.Context(comm, pool));
    world.Call(comm, 0, 0, nullptr, [&](const SelfAttentionCall& call) {
      const LaneMasks masks = source->MaskFor(call);
      const std::lock_guard lock(mutex);
      if (comm.rank() == 0) made.masks = masks;
    });
    const std::lock_guard lock(mutex);
    made.bytes_sent += comm.bytes_sent();
  });
  return made;
}

// Two ranks with a pass each have all that their own masks need. With so many heads a rank judges
// more lanes than are under way at once.
TEST(MaskMakers, SourcesMakeTheSameMasksAndSendNothingWhereEveryRankHasAPass) {
  LayerCase test;
  test.lanes = {.batch = 2, .heads = 11};
  test.token_grid = {.frames = 4, .height = 8, .width = 8};
  test.block_tokens = 64;
  const LayerWorld world{test};
  const LaneMasks shape({.blocks = BlockMask(test.lanes, test.Grid()),
                         .token_grid = test.token_grid,
                         .orders = {},
                         .tails = {}});
  const auto check = [&](const char* name, const auto& make) {
    const Made one = MadeOn(world, 1, make);
    EXPECT_LT(one.masks.blocks().Density(), 1.0) << name;
    EXPECT_EQ(one.bytes_sent, 0) << name;
    for (const int32_t ranks : {2, 3, 5, 8, 13}) {
      const Made made = MadeOn(world, ranks, make);
      EXPECT_EQ(made.masks, one.masks) << name << ", " << ranks << " ranks";
      EXPECT_EQ(made.bytes_sent == 0, ranks == 2) << name << ", " << ranks << " ranks";
    }
  };
  check("error", [&](const SourceContext& context) {
    ErrorOptions options;
    options.error = 0.2;
    return std::make_unique<ErrorMasks>(context, shape, options);
  });
  check("mass", [&](const SourceContext& context) {
    PredictOptions options;
    options.rule.mass = 0.6;
    return std::make_unique<PredictMasks>(context, shape, options);
  });
  check("svg", [&](const SourceContext& context) {
    return std::make_unique<SvgMasks>(context, SvgOptions());
  });
  check("sparge", [&](const SourceContext& context) {
    return std::make_unique<SpargeMasks>(context, SpargeOptions());
  });
}

}  // namespace
}  // namespace equitile

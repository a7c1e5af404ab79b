// The parts of the fractional planner, each against a slow and obvious version of itself.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "equitile/plan/planners/fractional/fractional_groups.h"
#include "equitile/plan/planners/fractional/fractional_ledger.h"
#include "equitile/plan/planners/fractional/fractional_line.h"
#include "equitile/plan/planners/fractional/fractional_pack.h"
#include "equitile/plan/planners/fractional/fractional_rows.h"
#include "equitile/plan/planners/random_plan_testing.h"
#include "equitile/plan/predict/traffic.h"

namespace equitile {
namespace {

using testing::CheckCases;
using testing::RandomCase;

Range AnyRange(RandomCase& random, int64_t size) {
  const int64_t begin = random.Between(0, size);
  return {begin, random.Between(begin, size)};
}

TEST(RowTable, AnswersAreThoseOfTheMask) {
  EXPECT_TRUE(CheckCases("rows", [](RandomCase& random) {
    const Problem problem = random.MakeProblem();
    const BlockMask mask = random.MakeMask(problem);
    const CostModel model = {.block = random.Between(1, 9), .row = random.Between(0, 20)};
    const std::vector<int32_t> row_blocks = RowBlocks(mask);
    const RowTable table(mask, row_blocks, model);
    const int64_t lane = random.Between(0, mask.LaneCount() - 1);
    const Range rows = AnyRange(random, mask.QBlocks());
    int64_t cost = 0, busy = 0;
    std::vector<uint64_t> needed(static_cast<size_t>(mask.WordsPerRow()));
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      cost += model.Of(mask.RowCount(lane, row));
      busy += mask.RowCount(lane, row) > 0;
      for (size_t w = 0; w < needed.size(); ++w) needed[w] |= mask.Row(lane, row)[w];
    }
    RC_ASSERT(table.Cost(lane, rows) == cost);
    RC_ASSERT(table.Busy(lane, rows) == busy);
    std::vector<uint64_t> got(needed.size());
    table.AddNeeded(lane, rows, got.data());
    RC_ASSERT(got == needed);
    const Range bits = AnyRange(random, mask.KvBlocks());
    int64_t set = 0;
    for (int64_t b = bits.begin; b < bits.end; ++b)
      set += (needed[static_cast<size_t>(b / 64)] >> (b % 64)) & 1;
    RC_ASSERT(CountBits(needed.data(), bits) == set);

    const int64_t wanted = random.Between(0, cost + 10);
    const int64_t end = table.EndNearest(lane, rows, wanted);
    const int64_t begin = table.BeginNearest(lane, rows, wanted);
    const int64_t within = table.EndWithin(lane, rows, wanted);
    for (int64_t cut = rows.begin; cut <= rows.end; ++cut) {
      RC_ASSERT(std::abs(table.Cost(lane, {rows.begin, end}) - wanted) <=
                std::abs(table.Cost(lane, {rows.begin, cut}) - wanted));
      RC_ASSERT(std::abs(table.Cost(lane, {begin, rows.end}) - wanted) <=
                std::abs(table.Cost(lane, {cut, rows.end}) - wanted));
      RC_ASSERT((table.Cost(lane, {rows.begin, cut}) <= wanted) == (cut <= within));
    }
  }));
}

// With blocks of 64 tokens homes are whole blocks, and the books must agree with the exact count.
TEST(Ledger, BytesAreThoseOfThePlan) {
  EXPECT_TRUE(CheckCases("ledger", [](RandomCase& random) {
    Problem problem;
    problem.ranks = static_cast<int32_t>(random.Sized(1, 100));
    problem.lanes = {.batch = random.Between(1, 2), .heads = random.Sized(1, 6)};
    const int64_t tokens = 64 * random.Sized(1, 90);
    problem.grid = {.q_tokens = tokens, .kv_tokens = tokens, .block_tokens = 64};
    BlockMask mask = random.MakeMask(problem);
    const std::vector<int32_t> row_blocks = RowBlocks(mask);
    const RowTable rows(mask, row_blocks, {});
    const HomeMap home_map(problem);
    const BlockHomes homes(problem, home_map);
    const WireFormat wire;
    Ledger ledger(
        rows, homes,
        {.q_block = 64 * (wire.QBytes() + wire.OBytes()), .kv_block = 64 * wire.KvBytes()});
    auto any_rank = [&] { return random.Between(0, problem.ranks - 1); };
    for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
      for (int64_t begin = 0; begin < mask.QBlocks();) {
        const int64_t end =
            random.Chance(0.5) ? mask.QBlocks() : random.Between(begin + 1, mask.QBlocks());
        ledger.Take(lane, {begin, end}, any_rank());
        begin = end;
      }
    }
    for (int64_t step = random.Between(0, 30); step > 0; --step) {
      const int64_t lane = random.Between(0, mask.LaneCount() - 1);
      const auto& segments = ledger.Segments(lane);
      const Ledger::Segment segment =
          segments[static_cast<size_t>(random.Between(0, std::ssize(segments) - 1))];
      const int64_t begin = random.Between(segment.rows.begin, segment.rows.end - 1);
      const Range part = {begin, random.Between(begin + 1, segment.rows.end)};
      const int64_t to = any_rank();
      if (to == segment.rank) continue;
      // What the change leaves out: K/V that the two send as homes.
      const int64_t from_before = ledger.bytes(segment.rank), to_before = ledger.bytes(to);
      const int64_t saved = ledger.SavedBytes(lane, part, segment.rank, to);
      const int64_t gained = ledger.GainedBytes(lane, part, segment.rank, to);
      ledger.Give(lane, part, segment.rank, to);
      const int64_t kv_block = 64 * wire.KvBytes();
      const int64_t item = homes.ItemOf(lane);
      const int64_t to_home = homes.Kv(item, to).size() * kv_block;
      const int64_t from_home = homes.Kv(item, segment.rank).size() * kv_block;
      RC_ASSERT(std::abs(ledger.bytes(to) - to_before - gained) <= to_home);
      RC_ASSERT(std::abs(from_before - saved - ledger.bytes(segment.rank)) <= from_home);
    }
    // Rows that keep nothing are nobody's: they are left at home, as the planner does.
    std::vector<RowRuns> runs(static_cast<size_t>(mask.LaneCount()));
    std::vector<int64_t> work(static_cast<size_t>(problem.ranks), 0);
    for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
      for (const Ledger::Segment& segment : ledger.Segments(lane)) {
        work[static_cast<size_t>(segment.rank)] += rows.Cost(lane, segment.rows);
        for (int64_t row = segment.rows.begin; row < segment.rows.end; ++row) {
          const bool busy = mask.RowCount(lane, row) > 0;
          const int64_t rank = busy ? segment.rank : homes.QHome(homes.ItemOf(lane), row);
          runs[static_cast<size_t>(lane)].push_back(
              {.end = static_cast<int32_t>(row + 1), .rank = static_cast<int32_t>(rank)});
        }
      }
    }
    const Plan plan = MakeExchangePlan(
        problem, {.name = "test", .ulysses = 0, .ring = 0, .parameters = {}}, runs, true);
    const Traffic traffic = CountTraffic(plan, home_map, mask, wire);
    for (int32_t rank = 0; rank < problem.ranks; ++rank) {
      RC_ASSERT(ledger.bytes(rank) == traffic.OfRank(rank));
      RC_ASSERT(ledger.work(rank) == work[static_cast<size_t>(rank)]);
    }
  }));
}

TEST(PackLanes, RespectsRanksAndNumbers) {
  EXPECT_TRUE(CheckCases("pack", [](RandomCase& random) {
    const int64_t ranks = random.Sized(1, 64), lanes = random.Sized(1, 80);
    PackProblem problem;
    for (int64_t lane = 0; lane < lanes; ++lane) problem.cost.push_back(random.Between(0, 10000));
    problem.eligible.assign(static_cast<size_t>(lanes), {0, ranks});
    const bool halves = ranks >= 2 && random.Chance(0.4);
    if (halves) {
      for (Range& range : problem.eligible) {
        range = random.Chance(0.5) ? Range{0, ranks / 2} : Range{ranks / 2, ranks};
      }
    }
    const double total =
        static_cast<double>(std::accumulate(problem.cost.begin(), problem.cost.end(), int64_t{0}));
    problem.room.assign(static_cast<size_t>(ranks), total / static_cast<double>(ranks));
    problem.most_lanes = CeilDiv(lanes, ranks);
    problem.variant = static_cast<uint64_t>(random.Between(0, 3));
    const std::vector<int32_t> owner = PackLanes(problem);
    std::vector<int64_t> count(static_cast<size_t>(ranks), 0), load(static_cast<size_t>(ranks), 0);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const int32_t rank = owner[static_cast<size_t>(lane)];
      RC_ASSERT(problem.eligible[static_cast<size_t>(lane)].Contains(rank));
      ++count[static_cast<size_t>(rank)];
      load[static_cast<size_t>(rank)] += problem.cost[static_cast<size_t>(lane)];
    }
    if (!halves) RC_ASSERT(*std::max_element(count.begin(), count.end()) <= problem.most_lanes);
    // No single exchange of two lanes would bring the heaviest and the lightest rank nearer.
    const size_t high =
        static_cast<size_t>(std::max_element(load.begin(), load.end()) - load.begin());
    const size_t low =
        static_cast<size_t>(std::min_element(load.begin(), load.end()) - load.begin());
    if (ranks > 48 || halves) return;
    for (size_t a = 0; a < owner.size(); ++a) {
      for (size_t b = 0; b < owner.size(); ++b) {
        if (owner[a] != static_cast<int32_t>(high) || owner[b] != static_cast<int32_t>(low))
          continue;
        const int64_t net = problem.cost[a] - problem.cost[b];
        RC_ASSERT(net <= 0 || net >= load[high] - load[low] || load[high] - load[low] <= 1);
      }
    }
  }));
}

TEST(CutLine, PiecesAreContiguousAndAsEvenAsPieceByPieceSearchFinds) {
  EXPECT_TRUE(CheckCases("line", [](RandomCase& random) {
    const Problem problem = random.MakeProblem();
    const BlockMask mask = random.MakeMask(problem);
    if (mask.Kept() == 0) return;
    const std::vector<int32_t> row_blocks = RowBlocks(mask);
    const RowTable rows(mask, row_blocks, {});
    const double mean = static_cast<double>(mask.Kept()) / problem.ranks;
    const std::vector<double> target(static_cast<size_t>(problem.ranks), mean);
    const double most = 1 + static_cast<double>(rows.LongestRow()) / mean;
    const bool one_lane_each = random.Chance(0.5);
    const std::vector<LinePiece> pieces = CutLine(rows, target, most, one_lane_each);
    if (pieces.empty()) {
      RC_ASSERT(one_lane_each);  // without that condition there is always a cut
      return;
    }
    std::vector<int64_t> work(target.size(), 0), lane_of(target.size(), -1);
    int64_t at = 0, rank = 0;
    for (const LinePiece& piece : pieces) {
      RC_ASSERT(piece.lane * mask.QBlocks() + piece.rows.begin == at);
      RC_ASSERT(piece.rank >= rank);
      at = piece.lane * mask.QBlocks() + piece.rows.end;
      rank = piece.rank;
      const int64_t cost = rows.Cost(piece.lane, piece.rows);
      work[static_cast<size_t>(rank)] += cost;
      if (!one_lane_each || cost == 0) continue;
      int64_t& lane = lane_of[static_cast<size_t>(rank)];
      RC_ASSERT(lane < 0 || lane == piece.lane);
      lane = piece.lane;
    }
    RC_ASSERT(at == mask.LaneCount() * mask.QBlocks());
    const int64_t worst = *std::max_element(work.begin(), work.end());
    RC_ASSERT(static_cast<double>(worst) <= most * mean + 1e-6);
  }));
}

TEST(GroupShares, OneGroupWhereLatencyRulesSeveralWhereItDoesNot) {
  std::vector<LaneShare> shares;
  for (int32_t lane = 0; lane < 12; ++lane) {
    shares.push_back({.lane = lane,
                      .rank = lane % 2,
                      .input_seconds = 3e-3,
                      .compute_seconds = 10e-3,
                      .output_seconds = 1e-3});
  }
  const std::vector<int32_t> quick = GroupShares(shares, 2, 1e-6);
  EXPECT_EQ(*std::max_element(quick.begin(), quick.end()), 5);
  const std::vector<int32_t> slow = GroupShares(shares, 2, 1.0);
  EXPECT_EQ(*std::max_element(slow.begin(), slow.end()), 0);
}

TEST(GroupShares, WhatIsAtHomeIsComputedWhileTheRestArrives) {
  std::vector<LaneShare> shares;
  for (int32_t lane = 0; lane < 4; ++lane) {
    shares.push_back({.lane = lane,
                      .rank = 0,
                      .input_seconds = lane == 2 ? 0 : 6e-3,
                      .compute_seconds = 10e-3,
                      .output_seconds = lane == 2 ? 0 : 2e-3});
  }
  const std::vector<int32_t> group = GroupShares(shares, 1, 1e-6);
  EXPECT_EQ(group[2], 0);
  EXPECT_GT(*std::max_element(group.begin(), group.end()), 0);
}

}  // namespace
}  // namespace equitile

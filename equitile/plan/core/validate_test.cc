#include "equitile/plan/core/validate.h"

#include <gtest/gtest.h>

#include "equitile/base/error.h"
#include "equitile/plan/planners/random_plan_testing.h"

namespace equitile {
namespace {

using testing::CheckCases;
using testing::MasksFor;
using testing::RandomCase;

TEST(Validate, AcceptsEveryLoweredPlan) {
  EXPECT_TRUE(CheckCases("any plan, any mask", [](RandomCase& random) {
    const Problem problem = random.MakeProblem();
    const BlockMask mask = random.MakeMask(problem);
    const std::optional<std::string> violation =
        Validate(Lower(random.MakePlan(problem), MasksFor(problem, mask)), mask);
    if (violation) RC_FAIL(*violation);
  }));
}

TEST(Validate, AcceptsStaticLayouts) {
  EXPECT_TRUE(CheckCases("ulysses, ring, usp", [](RandomCase& random) {
    const Problem problem = random.MakeProblem();
    const BlockMask mask = random.MakeMask(problem);
    for (const Plan& plan : {PlanUlysses(problem), PlanRing(problem)}) {
      const auto violation = Validate(Lower(plan, MasksFor(problem, mask)), mask);
      if (violation) RC_FAIL(*violation);
    }
    for (int32_t ulysses = 1; ulysses <= problem.ranks; ++ulysses) {
      if (problem.ranks % ulysses != 0) continue;
      const auto violation = Validate(
          Lower(PlanUsp(problem, ulysses, problem.ranks / ulysses), MasksFor(problem, mask)), mask);
      if (violation) RC_FAIL(*violation);
    }
  }));
}

// --- Planted bugs: each must be found and described ---

class PlantedBug : public ::testing::Test {
 protected:
  // 2 lanes x 6 x 6 blocks; lane 1 row 2 keeps blocks 1 and 4.
  PlantedBug()
      : mask_({.batch = 1, .heads = 2}, {.q_tokens = 384, .kv_tokens = 384, .block_tokens = 64}) {
    for (int64_t lane = 0; lane < 2; ++lane) {
      for (int64_t q = 0; q < 6; ++q) {
        mask_.Set(lane, q, q);
        mask_.Set(lane, q, (q + 3) % 6);
      }
    }
    mask_.Set(1, 2, 2, false);
    mask_.Set(1, 2, 5, false);
    mask_.Set(1, 2, 1);
    mask_.Set(1, 2, 4);
    problem_ = {
        .ranks = 2, .lanes = mask_.lanes(), .grid = mask_.grid(), .token_grid = {}, .orders = {}};
  }

  // In both, rank 0 computes lane 1 row 2.
  Program Exchange() const {
    const RowRuns split = {{.end = 3, .rank = 0, .stage = 0}, {.end = 6, .rank = 1, .stage = 1}};
    return Lower(MakeExchangePlan(problem_,
                                  {.name = "fractional", .ulysses = 0, .ring = 0, .parameters = {}},
                                  {split, split}, true),
                 mask_);
  }
  Program Ring() const { return Lower(PlanRing(problem_), mask_); }

  void ExpectViolation(const Program& program, const std::string& words) const {
    const std::optional<std::string> violation = Validate(program, mask_);
    ASSERT_TRUE(violation.has_value()) << "not noticed: " << words;
    EXPECT_NE(violation->find(words), std::string::npos) << *violation;
  }

  // Its own copy of the list, without the block.
  static Span Without(Program& program, Span span, int32_t lane, int32_t block) {
    Span copy{std::ssize(program.blocks), 0};
    for (int64_t i = span.first; i < span.first + span.count; ++i) {
      const LaneBlocks item = program.blocks[static_cast<size_t>(i)];
      for (int32_t b = item.begin; b < item.end; ++b) {
        if (item.lane != lane || b != block) program.blocks.push_back({item.lane, b, b + 1});
      }
    }
    copy.count = std::ssize(program.blocks) - copy.first;
    return copy;
  }
  static Transfer& FirstOf(Program& program, int32_t stage, Cargo cargo, int32_t to) {
    const Span inputs = program.stages[static_cast<size_t>(stage)].inputs;
    for (int64_t i = inputs.first; i < inputs.first + inputs.count; ++i) {
      Transfer& transfer = program.transfers[static_cast<size_t>(i)];
      if (transfer.cargo == cargo && transfer.to == to) return transfer;
    }
    throw Error("no such transfer");
  }

  BlockMask mask_;
  Problem problem_;
};

TEST_F(PlantedBug, None) {
  EXPECT_EQ(Validate(Exchange(), mask_), std::nullopt);
  EXPECT_EQ(Validate(Ring(), mask_), std::nullopt);
}

TEST_F(PlantedBug, DroppedRow) {
  Program program = Exchange();
  Task& task = program.tasks[0];
  task.rows = Without(program, task.rows, 1, 2);
  ExpectViolation(
      program, "lane 1 row 2: rank 0 sends its output home in stage 0 without having computed it");
}

TEST_F(PlantedBug, DroppedBlockOfAPartialRow) {
  Program program = Ring();
  for (KvSet& set : program.kv_sets) {
    for (WordBits& part : set) part.bits &= ~(uint64_t{1} << 4);
  }
  ExpectViolation(program, "lane 0 row 1: block 4 is kept but never computed");
}

TEST_F(PlantedBug, DoubledRow) {
  Program program = Exchange();
  const LaneBlocks again{1, 2, 3};
  Span rows = Without(program, program.tasks[0].rows, -1, -1);
  program.blocks.push_back(again);
  ++rows.count;
  program.tasks[0].rows = rows;
  ExpectViolation(program, "lane 1 row 2: rank 0 computes block 1 a second time in stage 0");
}

TEST_F(PlantedBug, DoubledBlockOfAPartialRow) {
  Program program = Ring();
  // In stage 1 rank 0 computes the kv blocks of rank 1 (3 to 5); its set now also has block 4 of a
  // second task.
  ASSERT_EQ(program.stages[1].tasks.first + program.stages[1].tasks.count,
            std::ssize(program.tasks));
  program.kv_sets.push_back({{.word = 0, .bits = uint64_t{1} << 4}});
  program.tasks.push_back({.rank = 0,
                           .kv_set = static_cast<int32_t>(program.kv_sets.size()) - 1,
                           .rows = program.tasks[0].rows});
  ++program.stages[1].tasks.count;
  ExpectViolation(program, "lane 0 row 1: rank 0 computes block 4 a second time in stage 1");
}

TEST_F(PlantedBug, UnsentKv) {
  Program program = Exchange();
  Transfer& transfer = FirstOf(program, 0, Cargo::kKv, 0);
  transfer.blocks = Without(program, transfer.blocks, 1, 4);
  ExpectViolation(program, "lane 1 row 1: rank 0 computes block 4 in stage 0 without its K and V");
}

TEST_F(PlantedBug, UnsentQ) {
  Program program = Exchange();
  Transfer& transfer = FirstOf(program, 1, Cargo::kQ, 1);
  transfer.blocks = Without(program, transfer.blocks, 1, 5);
  ExpectViolation(program, "lane 1 row 5: rank 1 computes it in stage 1 without its Q");
}

TEST_F(PlantedBug, LateKv) {
  Program program = Exchange();
  // What rank 1 needs in stage 1 is promised for a stage that never is: swap the two stages' tasks
  // instead.
  std::swap(program.stages[0].tasks, program.stages[1].tasks);
  std::swap(program.stages[0].returns, program.stages[1].returns);
  ExpectViolation(program, "rank 1 computes it in stage 0 without its Q");
}

TEST_F(PlantedBug, PassedOnWithoutHavingIt) {
  Program program = Ring();
  Transfer& transfer = FirstOf(program, 0, Cargo::kKv, 1);
  transfer.blocks = Without(program, transfer.blocks, 0, 5);
  mask_.Set(0, 5, 5, false);  // rank 1 does not need it itself ...
  mask_.Set(0, 2, 5);
  ExpectViolation(
      program,
      "stage 1: rank 1 passes K/V block 5 of lane 0 on to rank 0, but did not hold it in stage 0");
}

TEST_F(PlantedBug, OutputThatStaysAway) {
  Program program = Exchange();
  const Span returns = program.stages[0].returns;
  Transfer& transfer = program.transfers[static_cast<size_t>(returns.first)];
  transfer.blocks = Without(program, transfer.blocks, 1, 2);
  ExpectViolation(program, "lane 1 row 2: its output never goes home");
}

TEST_F(PlantedBug, OutputThatLeavesTooEarly) {
  Program program = Ring();
  std::swap(program.stages[0].returns, program.stages[1].returns);
  ExpectViolation(program, "computes it in stage 1, but its output went home in stage 0");
}

TEST_F(PlantedBug, RowOnTwoRanks) {
  Program program = Ring();
  Task& task = program.tasks[0];
  task.rank = 1;
  ExpectViolation(program, "rank 1 computes it in stage 0 without its Q");
}

TEST_F(PlantedBug, TransferToNobody) {
  Program program = Exchange();
  FirstOf(program, 0, Cargo::kKv, 0).to = 2;
  ExpectViolation(program, "stage 0: a transfer from rank -1 to rank 2");
}

TEST_F(PlantedBug, MaskOfAnotherShape) {
  EXPECT_THROW(Validate(Exchange(), BlockMask({.batch = 1, .heads = 3}, mask_.grid())), InputError);
}

}  // namespace
}  // namespace equitile

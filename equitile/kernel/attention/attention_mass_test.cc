// Block masses: how much of each row's softmax its kept blocks hold.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/kernel/attention/attention_testing.h"
#include "equitile/kernel/target_testing.h"

namespace equitile {
namespace {

using testing::LaidOut;
using testing::PackedStrips;
using testing::Problem;
using testing::ProblemOptions;
using testing::ResultBits;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kUntouched = -77.0f;

// Runs the problem in a fresh output and returns the masses.
std::vector<float> Masses(const Problem& problem, AttentionArgs args, int threads = 2) {
  std::vector<float> masses(problem.rows.kv_blocks.size(), kUntouched);
  args.masses = masses.data();
  problem.Bits(args, threads);
  return masses;
}

class AttentionMasses : public testing::TargetTest {};

void ExpectRight(const ProblemOptions& options, int64_t every = 1) {
  const Problem problem(options);
  const std::vector<float> masses = Masses(problem, problem.args);
  for (int64_t row = 0; row < problem.rows.Count(); row += every) {
    const AttentionReference reference = ReferenceAttentionRow(problem.args, row);
    const size_t kept = problem.rows.KvBlocks(row).size();
    ASSERT_EQ(reference.masses.size(), kept);
    double sum = 0.0, tolerance = 0.0;
    for (size_t j = 0; j < kept; ++j) {
      const double got =
          masses[static_cast<size_t>(problem.rows.first[static_cast<size_t>(row)]) + j];
      ASSERT_NEAR(got, reference.masses[j], reference.mass_tolerance[j])
          << "head_dim " << options.head_dim << ", " << options.grid.q_tokens << " x "
          << options.grid.kv_tokens << " tokens, block " << options.grid.block_tokens << ", row "
          << row << ", its block " << j << ", seed " << options.seed;
      sum += got;
      tolerance += reference.mass_tolerance[j];
    }
    if (kept > 0) EXPECT_NEAR(sum, 1.0, tolerance);
  }
}

TEST_P(AttentionMasses, HeadDims) {
  for (int64_t head_dim : {8, 24, 32, 64, 128, 200, 512}) {
    ExpectRight({.lanes = {1, 2},
                 .grid = {.q_tokens = 65, .kv_tokens = 83, .block_tokens = 32},
                 .head_dim = head_dim});
  }
}

// Blocks of any size, which chunks of 128 tokens cut or hold several of.
TEST_P(AttentionMasses, BlockSizes) {
  for (int64_t block : {16, 32, 48, 64, 80, 128, 240, 256}) {
    for (float density : {0.4f, 1.0f}) {
      ExpectRight({.grid = {.q_tokens = 301, .kv_tokens = 723, .block_tokens = block},
                   .head_dim = 24,
                   .density = density},
                  3);
    }
  }
}

TEST_P(AttentionMasses, TokenCounts) {
  for (int64_t tokens : {1, 7, 16, 17, 63, 64, 65, 129, 257}) {
    ExpectRight({.grid = {.q_tokens = tokens, .kv_tokens = tokens, .block_tokens = 64}},
                tokens > 200 ? 5 : 1);
  }
}

TEST_P(AttentionMasses, RandomProblems) {
  for (uint64_t seed = 500; seed < 525; ++seed) {
    Rng rng(seed);
    auto any = [&](int64_t from, int64_t to) {
      return from + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(to - from + 1)));
    };
    ExpectRight({.lanes = {any(1, 3), any(1, 4)},
                 .grid = {.q_tokens = any(1, 90),
                          .kv_tokens = any(1, 300),
                          .block_tokens = 16 * any(1, 16)},
                 .head_dim = 8 * any(1, any(0, 3) == 0 ? 64 : 12),
                 .density = static_cast<float>(any(0, 10)) * 0.1f,
                 .seed = seed},
                3);
  }
}

// Scores that grow from block to block: every chunk moves the maximum, and the first blocks end
// with almost nothing.
TEST_P(AttentionMasses, ScoresThatMoveTheMaximum) {
  Problem problem({.grid = {.q_tokens = 40, .kv_tokens = 700, .block_tokens = 48},
                   .head_dim = 8,
                   .density = 1.0f});
  for (int64_t t = 0; t < 40; ++t) problem.q.view().Store(1.0f, 0, t, 0, 0);
  for (int64_t t = 0; t < 700; ++t)
    problem.k.view().Store(static_cast<float>(t % 2 == 0 ? t : -t) * 0.1f, 0, t, 0, 0);
  const std::vector<float> masses = Masses(problem, problem.args);
  const AttentionReference reference = ReferenceAttentionRow(problem.args, 0);
  for (size_t j = 0; j < reference.masses.size(); ++j)
    EXPECT_NEAR(masses[j], reference.masses[j], reference.mass_tolerance[j]) << j;
}

const ProblemOptions kProblems[] = {
    {.lanes = {2, 3},
     .grid = {.q_tokens = 75, .kv_tokens = 101, .block_tokens = 16},
     .head_dim = 24},
    {.lanes = {1, 2},
     .grid = {.q_tokens = 130, .kv_tokens = 700, .block_tokens = 64},
     .head_dim = 64,
     .density = 1.0f},
    // Blocks of more query strips than are computed together.
    {.grid = {.q_tokens = 300, .kv_tokens = 790, .block_tokens = 256},
     .head_dim = 200,
     .density = 0.7f},
};

TEST_P(AttentionMasses, ChangeNoBitOfTheOutput) {
  for (const ProblemOptions& options : kProblems) {
    const Problem problem(options);
    std::vector<float> masses(problem.rows.kv_blocks.size());
    AttentionArgs args = problem.args;
    args.masses = masses.data();
    EXPECT_TRUE(problem.Bits(args) == problem.Bits());
  }
}

TEST_P(AttentionMasses, SameBitsOnAnyThreadsSourcesAndRowByRow) {
  for (const ProblemOptions& options : kProblems) {
    Problem problem(options);
    const std::vector<float> want = Masses(problem, problem.args, 1);
    for (int threads : {2, 3, 8}) EXPECT_EQ(Masses(problem, problem.args, threads), want);

    const PackedStrips k(problem.args, problem.args.k, StripLayout::kKey),
        v(problem.args, problem.args.v, StripLayout::kKey);
    AttentionArgs packed = problem.args;
    packed.k = k.Source();
    packed.v = v.Source();
    EXPECT_EQ(Masses(problem, packed), want) << "strips";

    const AttentionRows all = problem.rows;
    std::vector<float> got;
    for (int64_t row = 0; row < all.Count(); ++row) {
      const auto [lane, q_block] = all.rows[static_cast<size_t>(row)];
      problem.rows = AttentionRows();
      problem.rows.Add(lane, q_block, all.KvBlocks(row));
      const std::vector<float> masses = Masses(problem, problem.args, 1);
      got.insert(got.end(), masses.begin(), masses.end());
    }
    EXPECT_EQ(got, want) << "row by row";
  }
}

// What the means of a tail hold is what the kept blocks leave.
TEST_P(AttentionMasses, TailsHoldTheRest) {
  Problem problem({.lanes = {1, 2},
                   .grid = {.q_tokens = 100, .kv_tokens = 300, .block_tokens = 32},
                   .density = 0.5f});
  const std::vector<Tail> tails = {Tail::kMean, Tail::kNone};
  problem.args.tails.lanes = tails;
  const std::vector<float> masses = Masses(problem, problem.args);
  for (int64_t row = 0; row < problem.rows.Count(); ++row) {
    const AttentionReference reference = ReferenceAttentionRow(problem.args, row);
    double sum = 0.0;
    for (size_t j = 0; j < reference.masses.size(); ++j) {
      const double got =
          masses[static_cast<size_t>(problem.rows.first[static_cast<size_t>(row)]) + j];
      EXPECT_NEAR(got, reference.masses[j], reference.mass_tolerance[j]);
      sum += got;
    }
    if (problem.rows.rows[static_cast<size_t>(row)].lane == 0 &&
        std::ssize(reference.masses) < problem.options.grid.KvBlocks()) {
      EXPECT_LT(sum, 0.999);
    }
  }
}

TEST_P(AttentionMasses, NanStaysInItsRow) {
  Problem problem(
      {.grid = {.q_tokens = 64, .kv_tokens = 100, .block_tokens = 32}, .density = 1.0f});
  const std::vector<float> clean = Masses(problem, problem.args);
  problem.q.view().Store(kNan, 0, 40, 0, 3);
  const std::vector<float> masses = Masses(problem, problem.args);
  for (size_t j = 0; j < 4; ++j) {
    EXPECT_EQ(masses[j], clean[j]);
    EXPECT_TRUE(std::isnan(masses[4 + j]));
  }
}

// A row whose keys are all left out has no mass; queries that see nothing count as 0.
TEST_P(AttentionMasses, OfNothingIsNothing) {
  Problem problem({.grid = {.q_tokens = 32, .kv_tokens = 64, .block_tokens = 32}, .density = 1.0f});
  std::vector<float> bias(32 * 64, 0.0f);
  for (int64_t q = 0; q < 16; ++q)
    std::fill_n(bias.begin() + q * 64, 64, -std::numeric_limits<float>::infinity());
  problem.args.bias = {.data = bias.data(), .q_stride = 64};
  const std::vector<float> masses = Masses(problem, problem.args);
  EXPECT_NEAR(masses[0] + masses[1], 0.5, 1e-6);
}

EQUITILE_TEST_ON_ALL_TARGETS(AttentionMasses);

}  // namespace
}  // namespace equitile

// Output that has a place per strip, and partial rows merged where they lie.
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "equitile/kernel/attention/attention_testing.h"
#include "equitile/kernel/target_testing.h"

namespace equitile {
namespace {

using testing::MatchesReference;
using testing::Problem;
using testing::ProblemOptions;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kUntouched = -77.0f;

// A place of its own for every strip of output, with room between and behind its tokens.
class StripOutputs {
 public:
  explicit StripOutputs(const AttentionArgs& args)
      : args_(args), per_lane_(CeilDiv(args.grid.q_tokens, kStripTokens)) {
    for (int64_t i = 0; i < args.lanes.Count() * per_lane_; ++i) {
      const int64_t stride = args.head_dim + 8 * (i % 3);
      out_.emplace_back(static_cast<size_t>(kStripTokens * stride), kUntouched);
      lse_.emplace_back(static_cast<size_t>(kStripTokens), kUntouched);
      strips_.push_back({.out = out_.back().data(), .lse = lse_.back().data(), .stride = stride});
    }
  }
  StripOutputs(const StripOutputs&) = delete;
  StripOutputs& operator=(const StripOutputs&) = delete;

  // As if nothing had been seen yet.
  void Clear() {
    for (auto& out : out_) std::ranges::fill(out, 0.0f);
    for (auto& lse : lse_) std::ranges::fill(lse, -kInfinity);
  }
  void Drop(int64_t lane, int64_t strip) { strips_[Index(lane, strip)] = {}; }

  OutputTable Table(bool merge) const {
    return {.strips = strips_, .strips_per_lane = per_lane_, .merge = merge};
  }
  float Out(int64_t lane, int64_t position, int64_t dim) const {
    const size_t i = Index(lane, position / kStripTokens);
    return out_[i][static_cast<size_t>(position % kStripTokens * strips_[i].stride + dim)];
  }
  float Lse(int64_t lane, int64_t position) const {
    return lse_[Index(lane, position / kStripTokens)][static_cast<size_t>(position % kStripTokens)];
  }
  // Whatever belongs to no token and no dim of the strips: the room between them, the end of a
  // ragged strip.
  bool RestUntouched() const {
    for (int64_t lane = 0; lane < args_.lanes.Count(); ++lane) {
      for (int64_t position = 0; position < per_lane_ * kStripTokens; ++position) {
        const bool token = position < args_.grid.q_tokens;
        const int64_t stride = strips_[Index(lane, position / kStripTokens)].stride;
        if (!token && Lse(lane, position) != kUntouched) return false;
        for (int64_t dim = token ? args_.head_dim : 0; dim < stride; ++dim) {
          if (Out(lane, position, dim) != kUntouched) return false;
        }
      }
    }
    return true;
  }

 private:
  size_t Index(int64_t lane, int64_t strip) const {
    return static_cast<size_t>(lane * per_lane_ + strip);
  }

  const AttentionArgs& args_;
  const int64_t per_lane_;
  std::vector<std::vector<float>> out_, lse_;
  std::vector<OutputStrip> strips_;
};

const ProblemOptions kProblems[] = {
    {.lanes = {2, 3},
     .grid = {.q_tokens = 75, .kv_tokens = 101, .block_tokens = 16},
     .head_dim = 24},
    {.grid = {.q_tokens = 300, .kv_tokens = 290, .block_tokens = 256}, .head_dim = 200},
    {.lanes = {1, 2}, .grid = {.q_tokens = 7, .kv_tokens = 40, .block_tokens = 32}, .head_dim = 8},
};

class AttentionOutput : public testing::TargetTest {
 protected:
  static void Run(AttentionArgs args, const OutputTable& table, int threads = 2) {
    args.out_strips = table;
    args.out = {};
    args.lse = nullptr;
    ThreadPool pool(threads);
    Workspace workspace;
    Attention(args, pool, workspace);
  }
  // Every token of the table against the problem's own output, which is by token.
  static void ExpectSame(const StripOutputs& got, const Problem& want) {
    const AttentionArgs& args = want.args;
    for (int64_t lane = 0; lane < args.lanes.Count(); ++lane) {
      for (int64_t p = 0; p < args.grid.q_tokens; ++p) {
        const int64_t token = args.QOrder(lane) ? args.QOrder(lane)[p] : p;
        ASSERT_EQ(got.Lse(lane, p), want.Lse(lane, token)) << "lane " << lane << ", at " << p;
        for (int64_t d = 0; d < args.head_dim; ++d) {
          ASSERT_EQ(got.Out(lane, p, d),
                    args.out.Load(args.lanes.BatchOf(lane), token, args.lanes.HeadOf(lane), d))
              << "lane " << lane << ", at " << p << ", dim " << d;
        }
      }
    }
  }
};

TEST_P(AttentionOutput, TableHoldsTheBitsOfTheView) {
  for (const ProblemOptions& options : kProblems) {
    Problem problem(options);
    std::vector<int32_t> order(static_cast<size_t>(options.grid.q_tokens));
    std::iota(order.begin(), order.end(), 0);
    std::rotate(order.begin(), order.begin() + options.grid.q_tokens / 3, order.end());
    std::vector<const int32_t*> orders(static_cast<size_t>(options.lanes.Count()));
    orders.back() = order.data();
    problem.args.q_order = orders;
    problem.Run();
    for (int threads : {1, 3}) {
      const StripOutputs outputs(problem.args);
      Run(problem.args, outputs.Table(false), threads);
      ExpectSame(outputs, problem);
      EXPECT_TRUE(outputs.RestUntouched());
    }
  }
}

TEST_P(AttentionOutput, StripsOfRowsThatAreNotComputedMayBeMissing) {
  Problem problem({.grid = {.q_tokens = 64, .kv_tokens = 64, .block_tokens = 32}});
  problem.rows = AttentionRows();
  problem.rows.Add(0, 1, std::vector<int32_t>{0, 1});
  problem.Run();
  StripOutputs outputs(problem.args);
  outputs.Drop(0, 0);
  outputs.Drop(0, 1);
  Run(problem.args, outputs.Table(false));
  for (int64_t p = 32; p < 64; ++p) EXPECT_EQ(outputs.Lse(0, p), problem.Lse(0, p));
}

// Merged where it lies: the bits of MergePartial, and with all parts the whole row.
TEST_P(AttentionOutput, MergesParts) {
  constexpr int kParts = 3;
  for (const ProblemOptions& options : kProblems) {
    Problem problem(options);
    const AttentionRows whole = problem.rows;
    StripOutputs outputs(problem.args);
    outputs.Clear();
    const int64_t tokens = options.grid.q_tokens, dims = options.head_dim;
    const auto lanes = static_cast<size_t>(options.lanes.Count());
    std::vector<float> out(lanes * static_cast<size_t>(tokens * dims), 0.0f);
    std::vector<float> lse(lanes * static_cast<size_t>(tokens), -kInfinity);
    for (int part = 0; part < kParts; ++part) {
      problem.rows = testing::PartOf(whole, part, kParts);
      Run(problem.args, outputs.Table(true));
      problem.Run();
      for (int64_t lane = 0; lane < options.lanes.Count(); ++lane) {
        for (int64_t t = 0; t < tokens; ++t) {
          std::vector<float> row;
          for (int64_t d = 0; d < dims; ++d)
            row.push_back(problem.out.view().Load(options.lanes.BatchOf(lane), t,
                                                  options.lanes.HeadOf(lane), d));
          const int64_t at = lane * tokens + t;
          const float part_lse = problem.Lse(lane, t);
          MergePartial(out.data() + at * dims, lse.data() + at, row.data(), &part_lse, 1, dims);
        }
      }
    }
    for (int64_t lane = 0; lane < options.lanes.Count(); ++lane) {
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t at = lane * tokens + t;
        ASSERT_EQ(outputs.Lse(lane, t), lse[static_cast<size_t>(at)]) << lane << " " << t;
        problem.lse[static_cast<size_t>(at)] = outputs.Lse(lane, t);
        for (int64_t d = 0; d < dims; ++d) {
          ASSERT_EQ(outputs.Out(lane, t, d), out[static_cast<size_t>(at * dims + d)])
              << "lane " << lane << ", token " << t << ", dim " << d;
          problem.out.view().Store(outputs.Out(lane, t, d), options.lanes.BatchOf(lane), t,
                                   options.lanes.HeadOf(lane), d);
        }
      }
    }
    problem.rows = whole;
    EXPECT_TRUE(MatchesReference(problem));
  }
}

// A part without blocks leaves what is there, to the bit.
TEST_P(AttentionOutput, PartsThatSeeNothingChangeNothing) {
  Problem problem(kProblems[0]);
  problem.Run();
  StripOutputs outputs(problem.args);
  outputs.Clear();
  Run(problem.args, outputs.Table(true));
  const AttentionRows whole = problem.rows;
  problem.rows = AttentionRows();
  for (const auto& [lane, q_block] : whole.rows) problem.rows.Add(lane, q_block, {});
  Run(problem.args, outputs.Table(true));
  ExpectSame(outputs, problem);
}

EQUITILE_TEST_ON_ALL_TARGETS(AttentionOutput);

}  // namespace
}  // namespace equitile

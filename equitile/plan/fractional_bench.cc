// How long does a fractional plan take (row costs, plan and score, one thread), how does that grow,
// and how even and how cheap to move are the plans?
//   bench_plan --benchmark_filter=^fractional/size      counter rows: per second
//   bench_plan --benchmark_filter=^fractional/vectors   counters rho and bytes (busiest rank, over
//   plain Ulysses)
#include <benchmark/benchmark.h>

#include <string>

#include "equitile/base/error.h"
#include "equitile/pattern/synthetic_mask.h"
#include "equitile/plan/dbsp_vectors_testing.h"
#include "equitile/plan/fractional.h"
#include "equitile/plan/score.h"
#include "equitile/plan/static_planner.h"

namespace equitile {
namespace {

Problem ProblemOf(const BlockMask& mask, int32_t ranks) {
  return {
      .ranks = ranks, .lanes = mask.lanes(), .grid = mask.grid(), .token_grid = {}, .orders = {}};
}

struct Result {
  Plan plan;
  Score score;
};

Result PlanAndScore(const BlockMask& mask, int32_t ranks, const FractionalOptions& options) {
  RowCounts rows(mask);
  const CostModel model;
  const Cluster cluster;
  Result result;
  result.plan =
      PlanFractional(ProblemOf(mask, ranks), mask, rows.Blocks(), model, cluster, options);
  result.score = ScorePlan(result.plan, mask, rows, model, cluster);
  return result;
}

void TimePlan(benchmark::State& state, const BlockMask& mask, int32_t ranks,
              const FractionalOptions& options) {
  const Result result = PlanAndScore(mask, ranks, options);
  const double mean = static_cast<double>(mask.Kept()) / ranks;
  EQ_CHECK(result.score.imbalance.rho <= 1 + static_cast<double>(mask.KvBlocks()) / mean);
  for (auto _ : state) benchmark::DoNotOptimize(PlanAndScore(mask, ranks, options));

  RowCounts rows(mask);
  const Score ulysses = ScorePlan(PlanUlysses(ProblemOf(mask, ranks)), mask, rows, {}, {});
  const Donated donated = CountDonated(result.plan);
  state.counters["rho"] = result.score.imbalance.rho;
  state.counters["bytes"] =
      static_cast<double>(result.score.traffic.Max()) / static_cast<double>(ulysses.traffic.Max());
  state.counters["split_lanes"] = static_cast<double>(donated.split_lanes);
  state.counters["donated_rows"] = static_cast<double>(donated.rows);
  state.counters["rows"] =
      benchmark::Counter(static_cast<double>(mask.LaneCount() * mask.QBlocks()),
                         benchmark::Counter::kIsIterationInvariantRate);
}

void RegisterVectors() {
  for (const char* name : {"wan_h40_b64", "wan_h40_b128", "swat_h40_b64", "headline_h40_b128",
                           "one_h24_b64", "busy_h24_b64", "wan_h24_b128", "chess_h16_b64",
                           "half_h16_b64", "text_h12_b64", "unif_h12_b64", "wan_h12_b128"}) {
    for (const bool at_home : {true, false}) {
      const std::string title =
          fmt::format("fractional/vectors/{}/8{}", name, at_home ? "" : "/heads_dealt");
      benchmark::RegisterBenchmark(title.c_str(), [name, at_home](benchmark::State& state) {
        TimePlan(state, testing::ReadVectorMask(name), 8, {.heads_at_home = at_home});
      })->Unit(benchmark::kMicrosecond);
    }
  }
}

void RegisterSizes() {
  struct Size {
    int heads, blocks, ranks;
  };
  for (const Size& size :
       {Size{40, 1184, 8}, Size{10, 1184, 8}, Size{20, 1184, 8}, Size{80, 1184, 8},
        Size{40, 296, 8}, Size{40, 592, 8}, Size{40, 2368, 8}, Size{40, 1184, 2}, Size{40, 1184, 7},
        Size{40, 1184, 64}, Size{40, 1184, 512}, Size{40, 1184, 1024}}) {
    const std::string title =
        fmt::format("fractional/size/h{}_b{}/{}", size.heads, size.blocks, size.ranks);
    benchmark::RegisterBenchmark(title.c_str(), [size](benchmark::State& state) {
      const std::string text = fmt::format("wan,heads={},blocks={}", size.heads, size.blocks);
      TimePlan(state, MakeSyntheticMask(ParseSyntheticSpec(text)), size.ranks, {});
    })->Unit(benchmark::kMicrosecond);
  }
}

const bool registered = [] {
  RegisterSizes();
  RegisterVectors();
  return true;
}();

}  // namespace
}  // namespace equitile

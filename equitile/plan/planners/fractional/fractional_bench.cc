// How long does a fractional plan take (row costs, plan and score, one thread), how does that grow,
// and how even and how cheap to move are the plans?
//   bench_plan --benchmark_filter=^fractional/size      counter rows: per second
//   bench_plan --benchmark_filter=^fractional/many      the same over 102 masks: mean and worst
//   bench_plan --benchmark_filter=^fractional/vectors   counters rho and bytes (busiest rank, over
//   plain Ulysses)
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/pattern/synthetic_mask.h"
#include "equitile/plan/planners/dbsp/dbsp_vectors_testing.h"
#include "equitile/plan/planners/fractional/fractional.h"
#include "equitile/plan/planners/static_planner.h"
#include "equitile/plan/predict/score.h"

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

double BytesOverUlysses(const Result& result, const BlockMask& mask) {
  RowCounts rows(mask);
  const Score ulysses = ScorePlan(PlanUlysses(result.plan.problem()), mask, rows, {}, {});
  return static_cast<double>(result.score.traffic.Max()) /
         static_cast<double>(ulysses.traffic.Max());
}

void TimePlan(benchmark::State& state, const BlockMask& mask, int32_t ranks,
              const FractionalOptions& options) {
  const Result result = PlanAndScore(mask, ranks, options);
  const double mean = static_cast<double>(mask.Kept()) / ranks;
  EQ_CHECK(result.score.imbalance.rho <= 1 + static_cast<double>(mask.KvBlocks()) / mean);
  for (auto _ : state) benchmark::DoNotOptimize(PlanAndScore(mask, ranks, options));

  const Donated donated = CountDonated(result.plan);
  state.counters["rho"] = result.score.imbalance.rho;
  state.counters["bytes"] = BytesOverUlysses(result, mask);
  state.counters["split_lanes"] = static_cast<double>(donated.split_lanes);
  state.counters["donated_rows"] = static_cast<double>(donated.rows);
  state.counters["rows"] =
      benchmark::Counter(static_cast<double>(mask.LaneCount() * mask.QBlocks()),
                         benchmark::Counter::kIsIterationInvariantRate);
}

constexpr std::array kVectors = {"wan_h40_b64",       "wan_h40_b128",  "swat_h40_b64",
                                 "headline_h40_b128", "one_h24_b64",   "busy_h24_b64",
                                 "wan_h24_b128",      "chess_h16_b64", "half_h16_b64",
                                 "text_h12_b64",      "unif_h12_b64",  "wan_h12_b128"};

// The vectors and synthetic masks of all kinds and of many sizes.
std::vector<BlockMask> ManyMasks() {
  std::vector<BlockMask> masks;
  for (const char* name : kVectors) masks.push_back(testing::ReadVectorMask(name));
  for (const char* kind : {"wan", "headline", "uniform", "banded", "one-dense"}) {
    for (int heads : {12, 16, 24, 30, 40, 48}) {
      for (int blocks : {64, 128, 200}) {
        masks.push_back(MakeSyntheticMask(ParseSyntheticSpec(
            fmt::format("{},heads={},blocks={},seed={}", kind, heads, blocks, heads + blocks))));
      }
    }
  }
  return masks;
}

void PlanMany(benchmark::State& state, int32_t ranks, const FractionalOptions& options) {
  const std::vector<BlockMask> masks = ManyMasks();
  std::vector<double> rho, bytes;
  for (auto _ : state) {
    rho.clear();
    bytes.clear();
    for (const BlockMask& mask : masks) {
      const Result result = PlanAndScore(mask, ranks, options);
      rho.push_back(result.score.imbalance.rho);
      bytes.push_back(BytesOverUlysses(result, mask));
    }
  }
  auto mean = [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  };
  state.counters["rho_mean"] = mean(rho);
  state.counters["rho_max"] = *std::max_element(rho.begin(), rho.end());
  state.counters["bytes_mean"] = mean(bytes);
  state.counters["bytes_max"] = *std::max_element(bytes.begin(), bytes.end());
}

void RegisterMany() {
  for (const bool at_home : {true, false}) {
    for (int32_t ranks : {2, 4, 7, 8, 16, 64}) {
      const std::string title =
          fmt::format("fractional/many/{}{}", ranks, at_home ? "" : "/heads_dealt");
      benchmark::RegisterBenchmark(title.c_str(),
                                   [ranks, at_home](benchmark::State& state) {
                                     PlanMany(state, ranks, {.heads_at_home = at_home});
                                   })
          ->Unit(benchmark::kMillisecond)
          ->Iterations(1);
    }
  }
}

void RegisterVectors() {
  for (const char* name : kVectors) {
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
  RegisterMany();
  return true;
}();

}  // namespace
}  // namespace equitile

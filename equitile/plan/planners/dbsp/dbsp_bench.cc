// How fast are dbsp and dbsp+, and how good? All of costs, plan and score, one thread.
//   bench_plan --benchmark_filter=^dbsp/       x_reference: the reference's seconds over ours
//   bench_plan --benchmark_filter=^dbsp_plus/  growth with blocks and ranks
//   bench_plan --benchmark_filter=^layouts/    rho and moved share, averages over the stored masks:
//                                              the tables of docs/design/0011-dbsp.md
#include <benchmark/benchmark.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/plan/planners/dbsp/dbsp.h"
#include "equitile/plan/planners/dbsp/dbsp_plus.h"
#include "equitile/plan/planners/dbsp/dbsp_vectors_testing.h"
#include "equitile/plan/planners/planner.h"
#include "equitile/plan/predict/score.h"

namespace equitile {
namespace {

const BlockMask& VectorMask(const std::string& name) {
  static std::map<std::string, BlockMask> masks;
  auto [it, added] = masks.try_emplace(name);
  if (added) it->second = testing::ReadVectorMask(name);
  return it->second;
}

// wan_h40_b128 stretched to another number of blocks, with one block in sixteen flipped.
const BlockMask& StretchedMask(int64_t blocks) {
  static std::map<int64_t, BlockMask> masks;
  auto [it, added] = masks.try_emplace(blocks);
  if (!added) return it->second;
  const BlockMask& from = VectorMask("wan_h40_b128");
  BlockMask mask(from.lanes(), {blocks * 64, blocks * 64, 64});
  uint64_t state = 1;
  for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
    for (int64_t i = 0; i < blocks; ++i) {
      for (int64_t j = 0; j < blocks; ++j) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const bool flip = state >> 60 == 0;
        mask.Set(lane, i, j, from.Get(lane, i * 128 / blocks, j * 128 / blocks) != flip);
      }
    }
  }
  return it->second = std::move(mask);
}

// What `equitile plan` calls plan_seconds: counts, plan, rho, moved blocks, bytes.
void TimeDbsp(benchmark::State& state, const BlockMask& mask, int64_t ulysses, int64_t ring,
              const DbspOptions& dbsp, double reference_seconds) {
  const PlannerSpec spec{.kind = PlannerKind::kDbsp,
                         .ulysses = static_cast<int32_t>(ulysses),
                         .ring = static_cast<int32_t>(ring)};
  PlanOptions options;
  options.ranks = spec.ulysses * spec.ring;
  options.dbsp = dbsp;
  const LaneMasks masks(mask);
  for (auto _ : state) {
    RowCounts rows(mask);
    MadePlan made = MakePlan(spec, masks, rows, options);
    benchmark::DoNotOptimize(
        ScorePlan(made.plan, masks, rows, options.cost, options.cluster, std::move(made.work)));
  }
  state.counters["x_reference"] =
      benchmark::Counter(reference_seconds, benchmark::Counter::kIsIterationInvariantRate);
}

void TimeDbspPlus(benchmark::State& state, int64_t blocks, int64_t ulysses, int64_t ring) {
  const BlockMask& mask = StretchedMask(blocks);
  DbspScore score;
  for (auto _ : state) score = ScoreLayout(MakeDbspPlus(mask, ulysses, ring));
  state.counters["rho"] = score.rho;
  state.counters["moved"] = (score.moved_q + score.moved_kv) / static_cast<double>(2 * blocks);
}

using Layouter = std::function<DbspLayout(const BlockMask&, int64_t ulysses, int64_t ring)>;

// What each column of the tables is.
std::vector<std::pair<std::string, Layouter>> Layouters() {
  const auto dbsp = [](const DbspOptions& options) {
    return
        [options](const BlockMask& m, int64_t u, int64_t r) { return MakeDbsp(m, u, r, options); };
  };
  const auto plus = [](const DbspPlusOptions& options) {
    return [options](const BlockMask& m, int64_t u, int64_t r) {
      return MakeDbspPlus(m, u, r, options);
    };
  };
  const auto rho_of_dbsp = [](const BlockMask& m, int64_t u, int64_t r) {
    const double rho = ScoreLayout(MakeDbsp(m, u, r)).rho;
    return MakeDbspPlus(m, u, r, {.price = 1, .target_rho = std::max(1.0, rho)});
  };
  return {{"static", MakeStaticLayout},
          {"dbsp", dbsp({})},
          {"dbsp_reward_0", dbsp({.reward = 0})},
          {"dbsp_swap", dbsp({.blocks = DbspBlocks::kSwap})},
          {"dbsp_heads", dbsp({.balance = DbspBalance::kHeads})},
          {"dbsp_blocks", dbsp({.balance = DbspBalance::kBlocks})},
          {"plus", plus({})},
          {"plus_heads", plus({.balance = DbspBalance::kHeads})},
          {"plus_blocks", plus({.balance = DbspBalance::kBlocks})},
          {"plus_rho_of_dbsp", rho_of_dbsp},
          {"plus_1.02", plus({.target_rho = 1.02})},
          {"plus_1.05", plus({.target_rho = 1.05})},
          {"plus_free", plus({.price = 0, .target_rho = 1})},
          {"plus_free_slow", plus({.price = 0, .target_rho = 1, .sweeps = 500})}};
}

void AverageOf(benchmark::State& state, const std::vector<std::string>& names,
               const Layouter& layouter, int64_t ulysses, int64_t ring) {
  double rho = 0, rho_max = 0, moved = 0;
  for (auto _ : state) {
    rho = rho_max = moved = 0;
    for (const std::string& name : names) {
      const BlockMask& mask = VectorMask(name);
      const DbspScore score = ScoreLayout(layouter(mask, ulysses, ring));
      rho += score.rho;
      rho_max = std::max(rho_max, score.rho);
      moved +=
          (score.moved_q + score.moved_kv) / static_cast<double>(mask.QBlocks() + mask.KvBlocks());
    }
  }
  state.counters["rho"] = rho / static_cast<double>(names.size());
  state.counters["rho_max"] = rho_max;
  state.counters["moved"] = moved / static_cast<double>(names.size());
}

void RegisterSpeed() {
  for (const testing::StoredPlan& plan : testing::ReadStoredPlans()) {
    const std::string name =
        fmt::format("dbsp/{}/{}x{}/{}", plan.mask, plan.ulysses, plan.ring, plan.variant);
    benchmark::RegisterBenchmark(name.c_str(), [plan](benchmark::State& state) {
      TimeDbsp(state, VectorMask(plan.mask), plan.ulysses, plan.ring, plan.Options(),
               plan.reference_seconds);
    })->Unit(benchmark::kMicrosecond);
  }
  benchmark::RegisterBenchmark("dbsp/stretched_h40_b1184/4x2/v4r2", [](benchmark::State& state) {
    // The reference's time for this size: one thread of an AVX-512 machine.
    TimeDbsp(state, StretchedMask(1184), 4, 2, {}, 1.07);
  })->Unit(benchmark::kMicrosecond);
  for (int64_t blocks : {128, 296, 592, 1184}) {
    for (int64_t ring : {1, 2, 4, 8, 32, 64}) {
      const int64_t ulysses = std::max<int64_t>(1, 8 / ring);
      const std::string name = fmt::format("dbsp_plus/{}/{}x{}", blocks, ulysses, ring);
      benchmark::RegisterBenchmark(name.c_str(), TimeDbspPlus, blocks, ulysses, ring)
          ->Unit(benchmark::kMillisecond);
    }
  }
}

void RegisterAverages() {
  const std::vector<std::string> all = testing::VectorMaskNames();
  std::vector<std::string> wan;
  for (const std::string& name : all) {
    if (name.starts_with("wan_") || name.starts_with("busy_")) wan.push_back(name);
  }
  for (const auto& [set, names] : {std::pair{"all", all}, {"wan_busy", wan}}) {
    for (int64_t ring : {1, 2, 4, 8}) {
      for (const auto& [planner, layouter] : Layouters()) {
        const std::string name = fmt::format("layouts/{}/{}x{}/{}", set, 8 / ring, ring, planner);
        benchmark::RegisterBenchmark(name.c_str(), AverageOf, names, layouter, 8 / ring, ring)
            ->Iterations(1)
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  for (const auto& [ulysses, ring] : {std::pair{4, 1}, {2, 2}, {1, 4}}) {
    for (const auto& [planner, layouter] : Layouters()) {
      const std::string name = fmt::format("layouts/headline/{}x{}/{}", ulysses, ring, planner);
      benchmark::RegisterBenchmark(name.c_str(), AverageOf,
                                   std::vector<std::string>{"headline_h40_b128"}, layouter, ulysses,
                                   ring)
          ->Iterations(1)
          ->Unit(benchmark::kMillisecond);
    }
  }
}

const bool registered = (RegisterSpeed(), RegisterAverages(), true);

}  // namespace
}  // namespace equitile

// What do the figures of a plan cost next to making it? 40 heads x 1184^2 blocks: work per stage,
// bytes, lowering, prediction.
#include "equitile/plan/predict/score.h"

#include <benchmark/benchmark.h>

#include "equitile/base/error.h"
#include "equitile/pattern/synthetic_mask.h"
#include "equitile/plan/planners/dbsp/dbsp.h"
#include "equitile/plan/planners/static_planner.h"
#include "equitile/plan/predict/accounts.h"
#include "equitile/plan/predict/simulate.h"

namespace equitile {
namespace {

const BlockMask& Mask() {
  static const BlockMask mask = MakeSyntheticMask(ParseSyntheticSpec("wan,heads=40,blocks=1184"));
  return mask;
}

Problem ProblemOf(int32_t ranks) {
  return {.ranks = ranks,
          .lanes = Mask().lanes(),
          .grid = Mask().grid(),
          .token_grid = {},
          .orders = {}};
}

// Blocks dealt out in turn, the worst case for counting: every chunk touches every word.
Plan Scattered(int32_t ulysses, int32_t ring, bool needed_kv_only) {
  std::vector<int32_t> owner(static_cast<size_t>(Mask().QBlocks()));
  for (size_t i = 0; i < owner.size(); ++i) owner[i] = static_cast<int32_t>(i) % ring;
  std::vector<UlyssesGroup> groups;
  std::vector<std::vector<int32_t>> lanes(static_cast<size_t>(ulysses));
  for (int32_t lane = 0; lane < 40; ++lane)
    lanes[static_cast<size_t>(lane % ulysses)].push_back(lane);
  for (const std::vector<int32_t>& own : lanes)
    groups.push_back({.lanes = own, .q_owner = owner, .kv_owner = owner});
  return MakeRingPlan(ProblemOf(ulysses * ring),
                      {.name = "scattered", .ulysses = ulysses, .ring = ring, .parameters = {}},
                      groups, needed_kv_only);
}

Plan PlanOf(int64_t which) {
  switch (which) {
    case 0:
      return PlanUlysses(ProblemOf(8));
    case 1:
      return PlanRing(ProblemOf(8));
    case 2:
      return Scattered(4, 2, false);
    case 3:
      return Scattered(1, 8, false);
    case 4:
      return Scattered(1, 8, true);
    default:
      return PlanRing(ProblemOf(1024));
  }
}

void BM_StageWork(benchmark::State& state) {
  const Plan plan = PlanOf(state.range(0));
  const std::vector<int32_t> row_blocks = RowBlocks(Mask());
  for (auto _ : state) benchmark::DoNotOptimize(CountStageWork(plan, Mask(), row_blocks));
}
BENCHMARK(BM_StageWork)->DenseRange(0, 5)->Unit(benchmark::kMicrosecond);

void BM_Traffic(benchmark::State& state) {
  const Plan plan = PlanOf(state.range(0));
  const HomeMap homes(plan.problem());
  for (auto _ : state) benchmark::DoNotOptimize(CountTraffic(plan, homes, Mask(), {}));
}
BENCHMARK(BM_Traffic)->DenseRange(0, 5)->Unit(benchmark::kMicrosecond);

void BM_Lower(benchmark::State& state) {
  const Plan plan = PlanOf(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(Lower(plan, Mask()));
}
BENCHMARK(BM_Lower)->DenseRange(0, 5)->Unit(benchmark::kMicrosecond);

void BM_Simulate(benchmark::State& state) {
  const Plan plan = PlanOf(state.range(0));
  const StageWork work = CountStageWork(plan, Mask(), RowBlocks(Mask()));
  const HomeMap homes(plan.problem());
  const Program program = Lower(plan, Mask());
  for (auto _ : state) benchmark::DoNotOptimize(Simulate(program, homes, work, {}));
}
BENCHMARK(BM_Simulate)->DenseRange(0, 5)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace equitile

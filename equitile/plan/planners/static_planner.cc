#include "equitile/plan/planners/static_planner.h"

#include <numeric>

#include "equitile/base/error.h"

namespace equitile {
namespace {

Plan PlanContiguous(const Problem& problem, const PlannerLabel& label, int32_t ulysses,
                    int32_t ring) {
  const BatchSplit split = SplitBatch(problem.lanes.batch, ulysses, ring);
  const int64_t item_lanes = problem.lanes.Count() / split.items;
  const std::vector<int32_t> q_owner = EvenOwners(problem.grid.QBlocks(), split.ring);
  const std::vector<int32_t> kv_owner = EvenOwners(problem.grid.KvBlocks(), split.ring);
  std::vector<int32_t> lanes(static_cast<size_t>(problem.lanes.Count()));
  std::iota(lanes.begin(), lanes.end(), 0);
  std::vector<UlyssesGroup> groups;
  for (int32_t item = 0; item < split.items; ++item) {
    for (int32_t u = 0; u < split.ulysses; ++u) {
      const Range part = EvenPart(item_lanes, u, split.ulysses);
      groups.push_back(
          {.lanes = std::span(lanes).subspan(static_cast<size_t>(item * item_lanes + part.begin),
                                             static_cast<size_t>(part.size())),
           .q_owner = q_owner,
           .kv_owner = kv_owner});
    }
  }
  return MakeRingPlan(problem, label, groups, /*needed_kv_only=*/false);
}

}  // namespace

BatchSplit SplitBatch(int64_t batch, int32_t ulysses, int32_t ring) {
  const int64_t over_ulysses = std::gcd<int64_t, int64_t>(batch, ulysses),
                over_ring = batch / over_ulysses;
  if (ring % over_ring != 0) return {.items = 1, .ulysses = ulysses, .ring = ring};
  return {.items = static_cast<int32_t>(batch),
          .ulysses = static_cast<int32_t>(ulysses / over_ulysses),
          .ring = static_cast<int32_t>(ring / over_ring)};
}

std::vector<int32_t> EvenOwners(int64_t blocks, int64_t ring) {
  std::vector<int32_t> owners(static_cast<size_t>(blocks));
  for (int64_t r = 0; r < ring; ++r) {
    const Range part = EvenPart(blocks, r, ring);
    for (int64_t block = part.begin; block < part.end; ++block)
      owners[static_cast<size_t>(block)] = static_cast<int32_t>(r);
  }
  return owners;
}

Plan PlanUlysses(const Problem& problem) {
  std::vector<RowRuns> runs(static_cast<size_t>(problem.lanes.Count()));
  for (int32_t rank = 0; rank < problem.ranks; ++rank) {
    const Range lanes = EvenPart(problem.lanes.Count(), rank, problem.ranks);
    for (int64_t lane = lanes.begin; lane < lanes.end; ++lane) {
      runs[static_cast<size_t>(lane)] = {
          {.end = static_cast<int32_t>(problem.grid.QBlocks()), .rank = rank, .stage = 0}};
    }
  }
  return MakeExchangePlan(problem, {.name = "ulysses", .ulysses = 0, .ring = 0, .parameters = {}},
                          runs,
                          /*needed_kv_only=*/false);
}

Plan PlanRing(const Problem& problem) {
  return PlanContiguous(problem, {.name = "ring", .ulysses = 0, .ring = 0, .parameters = {}}, 1,
                        problem.ranks);
}

Plan PlanUsp(const Problem& problem, int32_t ulysses, int32_t ring) {
  if (ulysses < 1 || ring < 1 || int64_t{ulysses} * ring != problem.ranks) {
    throw InputError("[plan] usp:{}x{}: the degrees must multiply to {} ranks", ulysses, ring,
                     problem.ranks);
  }
  return PlanContiguous(
      problem, {.name = "usp", .ulysses = ulysses, .ring = ring, .parameters = {}}, ulysses, ring);
}

}  // namespace equitile

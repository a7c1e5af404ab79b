#include "equitile/plan/plan.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string_view>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"
#include "equitile/plan/plan_check.h"

namespace equitile {
namespace {

// Neighbouring runs of one rank become one run.
void Join(RowRuns& runs) {
  size_t kept = 0;
  for (size_t i = 1; i < runs.size(); ++i) {
    if (runs[kept].rank == runs[i].rank && runs[kept].stage == runs[i].stage) {
      runs[kept].end = runs[i].end;
    } else {
      runs[++kept] = runs[i];
    }
  }
  if (!runs.empty()) runs.resize(kept + 1);
}

uint64_t HashRuns(const RowRuns& runs) {
  Hasher hash;
  for (const RowRun& run : runs) {
    hash.Add(run.end);
    hash.Add(run.rank);
    hash.Add(run.stage);
  }
  return hash.Digest();
}

// One copy of every distinct row map, numbered in the order in which lanes first use them.
void ShareRowMaps(PlanParts& parts) {
  std::vector<RowRuns>& maps = parts.row_maps;
  for (RowRuns& runs : maps) Join(runs);
  std::vector<int32_t> by_content(maps.size());
  std::iota(by_content.begin(), by_content.end(), 0);
  auto runs_of = [&](int32_t map) -> const RowRuns& { return maps[static_cast<size_t>(map)]; };
  std::sort(by_content.begin(), by_content.end(),
            [&](int32_t a, int32_t b) { return runs_of(a) < runs_of(b); });
  std::vector<int32_t> same_as(maps.size());  // the first in by_content of the same content
  for (size_t i = 0; i < by_content.size(); ++i) {
    const bool repeats = i > 0 && runs_of(by_content[i]) == runs_of(by_content[i - 1]);
    same_as[static_cast<size_t>(by_content[i])] =
        repeats ? same_as[static_cast<size_t>(by_content[i - 1])] : by_content[i];
  }
  std::vector<RowRuns> shared;
  std::vector<int32_t> number(maps.size(), -1);
  for (int32_t& map : parts.map_of_lane) {
    const int32_t content = same_as[static_cast<size_t>(map)];
    int32_t& index = number[static_cast<size_t>(content)];
    if (index < 0) {
      index = static_cast<int32_t>(shared.size());
      shared.push_back(std::move(maps[static_cast<size_t>(content)]));
    }
    map = index;
  }
  maps = std::move(shared);
}

int32_t StagesOf(const PlanParts& parts) {
  if (parts.movement == Movement::kRing) return static_cast<int32_t>(parts.rings[0].ranks.size());
  int32_t stages = 1;
  for (const RowRuns& runs : parts.row_maps) {
    for (const RowRun& run : runs) stages = std::max(stages, run.stage + 1);
  }
  return stages;
}

}  // namespace

uint64_t HashParts(const PlanParts& parts) {
  Hasher hash;
  const Problem& problem = parts.problem;
  hash.Add(problem.ranks);
  for (int64_t size :
       {problem.lanes.batch, problem.lanes.heads, problem.grid.q_tokens, problem.grid.kv_tokens,
        problem.grid.block_tokens, problem.token_grid.frames, problem.token_grid.height,
        problem.token_grid.width, problem.token_grid.text_before, problem.token_grid.text_after}) {
    hash.Add(size);
  }
  hash.Add(std::span(problem.orders));
  hash.Add(std::string_view(parts.planner.name));
  hash.Add(parts.planner.ulysses);
  hash.Add(parts.planner.ring);
  hash.Add(parts.planner.parameters.size());
  for (const auto& [key, value] : parts.planner.parameters) {
    hash.Add(std::string_view(key)).Add(std::string_view(value));
  }
  hash.Add(parts.movement).Add(parts.needed_kv_only);
  hash.Add(parts.row_maps.size());
  for (const RowRuns& runs : parts.row_maps) {
    hash.Add(runs.size());
    hash.Add(HashRuns(runs));
  }
  hash.Add(std::span(parts.map_of_lane));
  hash.Add(parts.rings.size());
  for (const RingGroup& ring : parts.rings) {
    hash.Add(std::span(ring.ranks));
    hash.Add(std::span(ring.lanes));
    hash.Add(std::span(ring.kv_owner));
  }
  return hash.Digest();
}

Problem CanonicalOrders(Problem problem) {
  const bool natural = std::all_of(problem.orders.begin(), problem.orders.end(),
                                   [](TokenOrder order) { return order == TokenOrder::kFHW; });
  if (natural) {
    problem.orders.clear();
    problem.token_grid = {};
  }
  return problem;
}

PlanParts CanonicalParts(PlanParts parts) {
  parts.problem = CanonicalOrders(std::move(parts.problem));
  ShareRowMaps(parts);
  return parts;
}

std::string PlannerLabel::Text() const {
  return ulysses > 0 ? fmt::format("{}:{}x{}", name, ulysses, ring) : name;
}

Plan::Plan(PlanParts parts) : parts_(std::move(parts)) {
  parts_.problem = CheckedProblem(std::move(parts_.problem));
  CheckPlanParts(parts_);
  parts_ = CanonicalParts(std::move(parts_));
  stages_ = StagesOf(parts_);
}

int32_t Plan::RowOwner(int64_t lane, int64_t q_block) const {
  const RowRuns& runs = RunsOf(lane);
  return std::upper_bound(runs.begin(), runs.end(), q_block,
                          [](int64_t row, const RowRun& run) { return row < run.end; })
      ->rank;
}

std::vector<int32_t> Plan::RowOwners(int64_t lane) const {
  std::vector<int32_t> owners;
  owners.reserve(static_cast<size_t>(problem().grid.QBlocks()));
  for (const RowRun& run : RunsOf(lane)) owners.resize(static_cast<size_t>(run.end), run.rank);
  return owners;
}

bool Plan::SplitsRows() const { return movement() == Movement::kRing && stages_ > 1; }

Plan MakeRingPlan(const Problem& problem, const PlannerLabel& label,
                  std::vector<UlyssesGroup> groups, bool needed_kv_only) {
  const int32_t group_count = static_cast<int32_t>(groups.size());
  if (group_count == 0 || problem.ranks % group_count != 0) {
    throw InputError("[plan] {} Ulysses groups do not divide {} ranks", group_count, problem.ranks);
  }
  const int32_t ring_size = problem.ranks / group_count;
  const int32_t items =
      group_count % problem.lanes.batch == 0 ? static_cast<int32_t>(problem.lanes.batch) : 1;
  const int32_t item_groups = group_count / items;

  PlanParts parts{
      .problem = problem,
      .planner = label,
      .movement = Movement::kRing,
      .needed_kv_only = needed_kv_only,
      .row_maps = {},
      .map_of_lane = std::vector<int32_t>(static_cast<size_t>(problem.lanes.Count()), -1),
      .rings = {}};
  for (int32_t g = 0; g < group_count; ++g) {
    UlyssesGroup& group = groups[static_cast<size_t>(g)];
    RingGroup ring{
        .ranks = {}, .lanes = std::move(group.lanes), .kv_owner = std::move(group.kv_owner)};
    for (int32_t r = 0; r < ring_size; ++r) {
      ring.ranks.push_back(g / item_groups * item_groups * ring_size + r * item_groups +
                           g % item_groups);
    }
    RowRuns runs;
    for (size_t row = 0; row < group.q_owner.size(); ++row) {
      const int32_t owner = group.q_owner[row];
      EQ_CHECK(owner >= 0 && owner < ring_size, "q owner {} in a ring of {}", owner, ring_size);
      if (row == 0 || owner != group.q_owner[row - 1]) {
        runs.push_back({.end = 0, .rank = ring.ranks[static_cast<size_t>(owner)], .stage = 0});
      }
      runs.back().end = static_cast<int32_t>(row) + 1;
    }
    for (int32_t lane : ring.lanes) {
      EQ_CHECK(lane >= 0 && lane < problem.lanes.Count(), "lane {}", lane);
      parts.map_of_lane[static_cast<size_t>(lane)] = static_cast<int32_t>(parts.row_maps.size());
    }
    parts.row_maps.push_back(std::move(runs));
    parts.rings.push_back(std::move(ring));
  }
  return Plan(std::move(parts));
}

Plan MakeExchangePlan(const Problem& problem, const PlannerLabel& label,
                      const std::vector<RowRuns>& runs_of_lane, bool needed_kv_only) {
  PlanParts parts{.problem = problem,
                  .planner = label,
                  .movement = Movement::kExchange,
                  .needed_kv_only = needed_kv_only,
                  .row_maps = runs_of_lane,
                  .map_of_lane = {},
                  .rings = {}};
  for (size_t lane = 0; lane < runs_of_lane.size(); ++lane)
    parts.map_of_lane.push_back(static_cast<int32_t>(lane));
  return Plan(std::move(parts));
}

}  // namespace equitile

#include "equitile/plan/core/plan.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string_view>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"
#include "equitile/plan/core/home_map.h"
#include "equitile/plan/core/plan_check.h"

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

// Keeps one copy of every distinct map, numbered in the order in which `uses` first name them;
// uses: indices into maps.
template <typename Map>
void Share(std::vector<Map>& maps, std::span<int32_t* const> uses) {
  auto map_at = [&](int32_t map) -> const Map& { return maps[static_cast<size_t>(map)]; };
  std::vector<int32_t> by_content(maps.size()), same_as(maps.size()), number(maps.size(), -1);
  std::iota(by_content.begin(), by_content.end(), 0);
  std::sort(by_content.begin(), by_content.end(),
            [&](int32_t a, int32_t b) { return map_at(a) < map_at(b); });
  for (size_t i = 0; i < by_content.size(); ++i) {
    const bool repeats = i > 0 && map_at(by_content[i]) == map_at(by_content[i - 1]);
    same_as[static_cast<size_t>(by_content[i])] =
        repeats ? same_as[static_cast<size_t>(by_content[i - 1])] : by_content[i];
  }
  std::vector<Map> shared;
  shared.reserve(maps.size());
  for (int32_t* use : uses) {
    const size_t content = static_cast<size_t>(same_as[static_cast<size_t>(*use)]);
    if (number[content] < 0) {
      number[content] = static_cast<int32_t>(shared.size());
      shared.push_back(std::move(maps[content]));
    }
    *use = number[content];
  }
  maps = std::move(shared);
}

void CheckOwners(std::span<const int32_t> owners, int64_t blocks, int32_t ring_size) {
  EQ_CHECK(std::ssize(owners) == blocks, "{} owners of {} blocks", owners.size(), blocks);
  const bool inside = std::all_of(owners.begin(), owners.end(), [&](int32_t owner) {
    return static_cast<uint32_t>(owner) < static_cast<uint32_t>(ring_size);
  });
  EQ_CHECK(inside, "an owner outside a ring of {}", ring_size);
}

// Neighbouring rows of one owner as runs; rank: the owner.
RowRuns RunsOfOwners(std::span<const int32_t> owners) {
  size_t count = 1;
  for (size_t row = 1; row < owners.size(); ++row) count += owners[row] != owners[row - 1];
  RowRuns runs;
  runs.reserve(count);
  for (size_t row = 1; row <= owners.size(); ++row) {
    if (row < owners.size() && owners[row] == owners[row - 1]) continue;
    runs.push_back({.end = static_cast<int32_t>(row), .rank = owners[row - 1], .stage = 0});
  }
  return runs;
}

// One row map per group, in the order in which lanes first name them; map_of_lane holds groups
// before.
void AddRowMaps(std::span<const UlyssesGroup> groups, PlanParts& parts) {
  std::vector<int32_t> number(groups.size(), -1);
  parts.row_maps.reserve(groups.size());
  RowRuns ring_runs;  // of the owners at `owners`, with ring ranks
  const int32_t* owners = nullptr;
  for (int32_t& map : parts.map_of_lane) {
    EQ_CHECK(map >= 0, "a lane in no group");
    const size_t group = static_cast<size_t>(map);
    if (number[group] < 0) {
      const RingGroup& ring = parts.rings[group];
      if (owners != groups[group].q_owner.data()) {
        owners = groups[group].q_owner.data();
        CheckOwners(groups[group].q_owner, parts.problem.grid.QBlocks(),
                    static_cast<int32_t>(ring.ranks.size()));
        ring_runs = RunsOfOwners(groups[group].q_owner);
      }
      number[group] = static_cast<int32_t>(parts.row_maps.size());
      for (RowRun& run : parts.row_maps.emplace_back(ring_runs))
        run.rank = ring.ranks[static_cast<size_t>(run.rank)];
    }
    map = number[group];
  }
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
  if (problem.token_grid.home != TokenOrder::kFHW) hash.Add(problem.token_grid.home);
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
  hash.Add(parts.kv_maps.size());
  for (const std::vector<int32_t>& map : parts.kv_maps) hash.Add(std::span(map));
  hash.Add(parts.rings.size());
  for (const RingGroup& ring : parts.rings) {
    hash.Add(std::span(ring.ranks));
    hash.Add(std::span(ring.lanes));
    hash.Add(ring.kv_map);
  }
  // At the end and only where they are given, so that plans without keep their hash.
  if (!problem.homes.empty()) hash.Add(std::span(problem.homes));
  return hash.Digest();
}

Problem CanonicalProblem(Problem problem) {
  const bool all_at_home =
      std::all_of(problem.orders.begin(), problem.orders.end(),
                  [&](TokenOrder order) { return order == problem.token_grid.home; });
  if (all_at_home) {
    problem.orders.clear();
    problem.token_grid = {};
  }
  if (!problem.homes.empty() && problem.homes == DefaultHomes(problem, Side::kQuery) &&
      problem.grid.q_tokens == problem.grid.kv_tokens) {
    problem.homes.clear();
  }
  return problem;
}

PlanParts CanonicalParts(PlanParts parts) {
  parts.problem = CanonicalProblem(std::move(parts.problem));
  for (RowRuns& runs : parts.row_maps) Join(runs);
  std::vector<int32_t*> uses;
  for (int32_t& map : parts.map_of_lane) uses.push_back(&map);
  Share(parts.row_maps, uses);
  uses.clear();
  for (RingGroup& ring : parts.rings) uses.push_back(&ring.kv_map);
  Share(parts.kv_maps, uses);
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

Plan Plan::OfCanonical(PlanParts parts) {
  Plan plan;
  plan.parts_ = std::move(parts);
  plan.stages_ = StagesOf(plan.parts_);
  return plan;
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

bool Plan::KeepsLanesWhole() const {
  const auto on_one_rank = [](const RowRuns& runs) {
    return std::all_of(runs.begin(), runs.end(),
                       [&](const RowRun& run) { return run.rank == runs.front().rank; });
  };
  return movement() == Movement::kExchange && !needed_kv_only() &&
         std::all_of(parts_.row_maps.begin(), parts_.row_maps.end(), on_one_rank);
}

bool Plan::SplitsRows() const { return movement() == Movement::kRing && stages_ > 1; }

Plan MakeRingPlan(const Problem& problem, PlannerLabel label, std::span<const UlyssesGroup> groups,
                  bool needed_kv_only) {
  const int32_t group_count = static_cast<int32_t>(groups.size());
  if (group_count == 0 || problem.ranks % group_count != 0) {
    throw InputError("[plan] {} Ulysses groups do not divide {} ranks", group_count, problem.ranks);
  }
  const int32_t ring_size = problem.ranks / group_count;
  const int32_t items =
      group_count % problem.lanes.batch == 0 ? static_cast<int32_t>(problem.lanes.batch) : 1;
  const int32_t item_groups = group_count / items;

  PlanParts parts;
  parts.problem = CheckedProblem(problem);
  parts.planner = std::move(label);
  parts.movement = Movement::kRing;
  parts.needed_kv_only = needed_kv_only;
  parts.map_of_lane.assign(static_cast<size_t>(problem.lanes.Count()), -1);
  parts.rings.resize(groups.size());
  for (int32_t g = 0; g < group_count; ++g) {
    const UlyssesGroup& group = groups[static_cast<size_t>(g)];
    RingGroup& ring = parts.rings[static_cast<size_t>(g)];
    ring.ranks.resize(static_cast<size_t>(ring_size));
    for (int32_t r = 0; r < ring_size; ++r) {
      ring.ranks[static_cast<size_t>(r)] =
          g / item_groups * item_groups * ring_size + r * item_groups + g % item_groups;
    }
    ring.lanes.assign(group.lanes.begin(), group.lanes.end());
    if (g == 0 || groups[static_cast<size_t>(g - 1)].kv_owner.data() != group.kv_owner.data()) {
      CheckOwners(group.kv_owner, problem.grid.KvBlocks(), ring_size);
      parts.kv_maps.emplace_back(group.kv_owner.begin(), group.kv_owner.end());
    }
    ring.kv_map = static_cast<int32_t>(parts.kv_maps.size()) - 1;
    for (int32_t lane : group.lanes) {
      EQ_CHECK(lane >= 0 && lane < problem.lanes.Count(), "lane {}", lane);
      EQ_CHECK(parts.map_of_lane[static_cast<size_t>(lane)] < 0, "lane {} in two groups", lane);
      parts.map_of_lane[static_cast<size_t>(lane)] = g;
    }
  }
  if (parts.kv_maps.size() > 1) {
    std::vector<int32_t*> uses;
    for (RingGroup& ring : parts.rings) uses.push_back(&ring.kv_map);
    Share(parts.kv_maps, uses);
  }
  AddRowMaps(groups, parts);
  return Plan::OfCanonical(std::move(parts));
}

Plan MakeExchangePlan(const Problem& problem, const PlannerLabel& label,
                      const std::vector<RowRuns>& runs_of_lane, bool needed_kv_only) {
  PlanParts parts{.problem = problem,
                  .planner = label,
                  .movement = Movement::kExchange,
                  .needed_kv_only = needed_kv_only,
                  .row_maps = runs_of_lane,
                  .map_of_lane = {},
                  .kv_maps = {},
                  .rings = {}};
  for (size_t lane = 0; lane < runs_of_lane.size(); ++lane)
    parts.map_of_lane.push_back(static_cast<int32_t>(lane));
  return Plan(std::move(parts));
}

}  // namespace equitile

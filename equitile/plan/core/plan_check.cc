#include "equitile/plan/core/plan_check.h"

#include <algorithm>

#include "equitile/base/error.h"

namespace equitile {
namespace {

// A lane travels to a rank in one stage.
void CheckStages(const RowRuns& runs) {
  const bool one_stage = std::all_of(runs.begin(), runs.end(),
                                     [&](const RowRun& run) { return run.stage == runs[0].stage; });
  if (one_stage) return;
  RowRuns by_rank = runs;
  std::stable_sort(by_rank.begin(), by_rank.end(),
                   [](const RowRun& a, const RowRun& b) { return a.rank < b.rank; });
  for (size_t i = 1; i < by_rank.size(); ++i) {
    if (by_rank[i].rank == by_rank[i - 1].rank && by_rank[i].stage != by_rank[i - 1].stage) {
      throw InputError(
          "[plan] rank {} has rows of one lane in stages {} and {}; a lane travels to a rank in "
          "one stage",
          by_rank[i].rank, by_rank[i - 1].stage, by_rank[i].stage);
    }
  }
}

void CheckRuns(const RowRuns& runs, const Problem& problem, Movement movement) {
  const int64_t q_blocks = problem.grid.QBlocks();
  int32_t begin = 0;
  for (const RowRun& run : runs) {
    if (run.end <= begin || run.end > q_blocks) {
      throw InputError("[plan] rows {} to {}: runs of rows must ascend and end at {}", begin,
                       run.end, q_blocks);
    }
    if (run.rank < 0 || run.rank >= problem.ranks) {
      throw InputError("[plan] row {}: owner {} is not a rank; ranks are 0 to {}", begin, run.rank,
                       problem.ranks - 1);
    }
    if (run.stage < 0 || (movement == Movement::kRing && run.stage != 0)) {
      throw InputError(
          "[plan] row {}: stage {}; a ring plan has head group 0 only, others 0 and up", begin,
          run.stage);
    }
    begin = run.end;
  }
  if (begin != q_blocks) throw InputError("[plan] rows {} to {} have no owner", begin, q_blocks);
  CheckStages(runs);
}

void CheckRows(const PlanParts& parts) {
  if (std::ssize(parts.map_of_lane) != parts.problem.lanes.Count()) {
    throw InputError("[plan] row owners for {} lanes; there are {}", parts.map_of_lane.size(),
                     parts.problem.lanes.Count());
  }
  for (int32_t map : parts.map_of_lane) {
    if (map < 0 || map >= std::ssize(parts.row_maps)) {
      throw InputError("[plan] row map {} does not exist; there are {}", map,
                       parts.row_maps.size());
    }
  }
  for (const RowRuns& runs : parts.row_maps) CheckRuns(runs, parts.problem, parts.movement);
}

constexpr int32_t kNoGroup = -1;

// Notes for each of `items` that it is in `group`; each must exist and be in no other.
void Join(const std::vector<int32_t>& items, int32_t group, const char* what,
          std::vector<int32_t>& group_of) {
  for (int32_t item : items) {
    if (item < 0 || item >= std::ssize(group_of)) {
      throw InputError("[plan] ring group with {} {}: there are {}", what, item, group_of.size());
    }
    if (group_of[static_cast<size_t>(item)] != kNoGroup)
      throw InputError("[plan] {} {} is in two ring groups", what, item);
    group_of[static_cast<size_t>(item)] = group;
  }
}

void CheckAllJoined(const std::vector<int32_t>& group_of, const char* what) {
  const auto missing = std::find(group_of.begin(), group_of.end(), kNoGroup);
  if (missing != group_of.end())
    throw InputError("[plan] {} {} is in no ring group", what, missing - group_of.begin());
}

void CheckKvOwners(const PlanParts& parts, size_t ring_size) {
  for (const RingGroup& ring : parts.rings) {
    if (ring.kv_map < 0 || ring.kv_map >= std::ssize(parts.kv_maps)) {
      throw InputError("[plan] kv map {} does not exist; there are {}", ring.kv_map,
                       parts.kv_maps.size());
    }
  }
  for (const std::vector<int32_t>& map : parts.kv_maps) {
    if (std::ssize(map) != parts.problem.grid.KvBlocks()) {
      throw InputError("[plan] ring group owns {} kv blocks; there are {}", map.size(),
                       parts.problem.grid.KvBlocks());
    }
    for (int32_t owner : map) {
      if (owner < 0 || owner >= static_cast<int64_t>(ring_size)) {
        throw InputError("[plan] kv owner {}: ring ranks are 0 to {}", owner, ring_size - 1);
      }
    }
  }
}

// Rows of a lane are on ranks of the lane's group.
void CheckRowsInside(const PlanParts& parts, const std::vector<int32_t>& group_of_rank,
                     const std::vector<int32_t>& group_of_lane) {
  std::vector<int32_t> checked_for(parts.row_maps.size(), kNoGroup);
  for (size_t lane = 0; lane < group_of_lane.size(); ++lane) {
    const size_t map = static_cast<size_t>(parts.map_of_lane[lane]);
    const int32_t group = group_of_lane[lane];
    if (checked_for[map] == group) continue;
    checked_for[map] = group;
    for (const RowRun& run : parts.row_maps[map]) {
      if (group_of_rank[static_cast<size_t>(run.rank)] != group) {
        throw InputError(
            "[plan] lane {}: rows up to {} are on rank {}, which is not in the lane's ring group",
            lane, run.end, run.rank);
      }
    }
  }
}

void CheckRings(const PlanParts& parts) {
  if (parts.movement == Movement::kExchange) {
    if (!parts.rings.empty())
      throw InputError("[plan] {} ring groups in an exchange plan; it has none",
                       parts.rings.size());
    return;
  }
  if (parts.rings.empty()) throw InputError("[plan] a ring plan without ring groups");
  std::vector<int32_t> group_of_rank(static_cast<size_t>(parts.problem.ranks), kNoGroup);
  std::vector<int32_t> group_of_lane(static_cast<size_t>(parts.problem.lanes.Count()), kNoGroup);
  for (size_t g = 0; g < parts.rings.size(); ++g) {
    const RingGroup& ring = parts.rings[g];
    if (ring.ranks.empty() || ring.ranks.size() != parts.rings[0].ranks.size()) {
      throw InputError("[plan] ring groups of {} and {} ranks; all must be equal and not empty",
                       parts.rings[0].ranks.size(), ring.ranks.size());
    }
    Join(ring.ranks, static_cast<int32_t>(g), "rank", group_of_rank);
    Join(ring.lanes, static_cast<int32_t>(g), "lane", group_of_lane);
  }
  CheckKvOwners(parts, parts.rings[0].ranks.size());
  CheckAllJoined(group_of_rank, "rank");
  CheckAllJoined(group_of_lane, "lane");
  CheckRowsInside(parts, group_of_rank, group_of_lane);
}

void CheckHomes(const Problem& problem) {
  if (problem.homes.empty()) return;
  if (problem.grid.q_tokens != problem.grid.kv_tokens) {
    throw InputError(
        "[plan] homes of {} query and {} key tokens: homes can be given only where queries and "
        "keys "
        "are the same tokens",
        problem.grid.q_tokens, problem.grid.kv_tokens);
  }
  if (std::ssize(problem.homes) != problem.lanes.batch * problem.ranks) {
    throw InputError("[plan] homes begin at {} tokens; {} batch items on {} ranks need {}",
                     problem.homes.size(), problem.lanes.batch, problem.ranks,
                     problem.lanes.batch * problem.ranks);
  }
  for (int64_t i = 0; i < std::ssize(problem.homes); ++i) {
    const int64_t rank = i % problem.ranks, first = problem.homes[static_cast<size_t>(i)];
    const int64_t before = rank == 0 ? 0 : problem.homes[static_cast<size_t>(i - 1)];
    const int64_t most = rank == 0 ? 0 : problem.grid.q_tokens;
    if (first < before || first > most) {
      throw InputError(
          "[plan] batch item {}: the home of rank {} begins at token {}; it must begin at {} to {}",
          i / problem.ranks, rank, first, before, most);
    }
  }
}

}  // namespace

Problem CheckedProblem(Problem problem) {
  if (problem.ranks < 1) throw InputError("[plan] {} ranks: at least 1", problem.ranks);
  CheckBlockGrid(problem.grid);
  if (problem.lanes.batch < 1 || problem.lanes.heads < 1) {
    throw InputError("[plan] batch {} and heads {}: both must be positive", problem.lanes.batch,
                     problem.lanes.heads);
  }
  if (!problem.orders.empty() && std::ssize(problem.orders) != problem.lanes.Count()) {
    throw InputError("[plan] {} token orders for {} lanes", problem.orders.size(),
                     problem.lanes.Count());
  }
  CheckHomes(problem);
  problem = CanonicalProblem(std::move(problem));
  if (problem.orders.empty()) return problem;
  if (problem.grid.q_tokens != problem.grid.kv_tokens ||
      problem.token_grid.Tokens() != problem.grid.q_tokens) {
    throw InputError(
        "[plan] token orders need a token grid of {} query and {} key tokens; it has {}",
        problem.grid.q_tokens, problem.grid.kv_tokens, problem.token_grid.Tokens());
  }
  return problem;
}

void CheckPlanParts(const PlanParts& parts) {
  CheckRows(parts);
  CheckRings(parts);
}

}  // namespace equitile

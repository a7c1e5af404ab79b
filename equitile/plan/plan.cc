#include "equitile/plan/plan.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"

namespace equitile {
namespace {

// Neighbouring runs of one rank become one run.
RowRuns Joined(const RowRuns& runs) {
  RowRuns joined;
  for (const RowRun& run : runs) {
    if (!joined.empty() && joined.back().rank == run.rank && joined.back().stage == run.stage) {
      joined.back().end = run.end;
    } else {
      joined.push_back(run);
    }
  }
  return joined;
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

Problem CanonicalOrders(Problem problem) {
  const bool natural = std::all_of(problem.orders.begin(), problem.orders.end(),
                                   [](TokenOrder order) { return order == TokenOrder::kFHW; });
  if (natural) {
    problem.orders.clear();
    problem.token_grid = {};
  }
  return problem;
}

// One copy of every distinct row map, numbered in the order in which lanes first use them.
void ShareRowMaps(PlanParts& parts) {
  std::vector<RowRuns> shared;
  std::multimap<uint64_t, int32_t> known;               // hash of runs -> index in shared
  std::vector<int32_t> now(parts.row_maps.size(), -1);  // old index -> new
  for (int32_t& map : parts.map_of_lane) {
    int32_t& index = now[static_cast<size_t>(map)];
    if (index < 0) {
      RowRuns runs = Joined(parts.row_maps[static_cast<size_t>(map)]);
      const uint64_t hash = HashRuns(runs);
      const auto [first, last] = known.equal_range(hash);
      const auto same = std::find_if(first, last, [&](const auto& entry) {
        return shared[static_cast<size_t>(entry.second)] == runs;
      });
      if (same != last) {
        index = same->second;
      } else {
        index = static_cast<int32_t>(shared.size());
        known.emplace(hash, index);
        shared.push_back(std::move(runs));
      }
    }
    map = index;
  }
  parts.row_maps = std::move(shared);
}

void CheckRuns(const RowRuns& runs, const Problem& problem, Movement movement) {
  const int64_t q_blocks = problem.grid.QBlocks();
  int32_t begin = 0;
  std::vector<std::pair<int32_t, int32_t>> stage_of;  // (rank, stage)
  stage_of.reserve(runs.size());
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
    stage_of.emplace_back(run.rank, run.stage);
    begin = run.end;
  }
  if (begin != q_blocks) throw InputError("[plan] rows {} to {} have no owner", begin, q_blocks);
  std::sort(stage_of.begin(), stage_of.end());
  for (size_t i = 1; i < stage_of.size(); ++i) {
    if (stage_of[i].first == stage_of[i - 1].first &&
        stage_of[i].second != stage_of[i - 1].second) {
      throw InputError(
          "[plan] rank {} has rows of one lane in stages {} and {}; a lane travels to a rank in "
          "one stage",
          stage_of[i].first, stage_of[i - 1].second, stage_of[i].second);
    }
  }
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

// Marks `items` as used; each must be in [0, used.size()) and new.
void UseOnce(const std::vector<int32_t>& items, const char* what, std::vector<bool>& used) {
  for (int32_t item : items) {
    if (item < 0 || item >= std::ssize(used)) {
      throw InputError("[plan] ring group with {} {}: there are {}", what, item, used.size());
    }
    if (used[static_cast<size_t>(item)])
      throw InputError("[plan] {} {} is in two ring groups", what, item);
    used[static_cast<size_t>(item)] = true;
  }
}

void CheckAllUsed(const std::vector<bool>& used, const char* what) {
  const auto missing = std::find(used.begin(), used.end(), false);
  if (missing != used.end())
    throw InputError("[plan] {} {} is in no ring group", what, missing - used.begin());
}

void CheckRings(const PlanParts& parts) {
  if (parts.movement == Movement::kExchange) {
    if (!parts.rings.empty())
      throw InputError("[plan] {} ring groups in an exchange plan; it has none",
                       parts.rings.size());
    return;
  }
  if (parts.rings.empty()) throw InputError("[plan] a ring plan without ring groups");
  std::vector<bool> rank_used(static_cast<size_t>(parts.problem.ranks));
  std::vector<bool> lane_used(static_cast<size_t>(parts.problem.lanes.Count()));
  for (const RingGroup& ring : parts.rings) {
    if (ring.ranks.empty() || ring.ranks.size() != parts.rings[0].ranks.size()) {
      throw InputError("[plan] ring groups of {} and {} ranks; all must be equal and not empty",
                       parts.rings[0].ranks.size(), ring.ranks.size());
    }
    UseOnce(ring.ranks, "rank", rank_used);
    UseOnce(ring.lanes, "lane", lane_used);
    if (std::ssize(ring.kv_owner) != parts.problem.grid.KvBlocks()) {
      throw InputError("[plan] ring group owns {} kv blocks; there are {}", ring.kv_owner.size(),
                       parts.problem.grid.KvBlocks());
    }
    for (int32_t owner : ring.kv_owner) {
      if (owner < 0 || owner >= std::ssize(ring.ranks)) {
        throw InputError("[plan] kv owner {}: ring ranks are 0 to {}", owner,
                         ring.ranks.size() - 1);
      }
    }
    std::vector<int32_t> members = ring.ranks;
    std::sort(members.begin(), members.end());
    for (int32_t lane : ring.lanes) {
      for (const RowRun& run :
           parts.row_maps[static_cast<size_t>(parts.map_of_lane[static_cast<size_t>(lane)])]) {
        if (!std::binary_search(members.begin(), members.end(), run.rank)) {
          throw InputError(
              "[plan] lane {}: rows up to {} are on rank {}, which is not in the lane's ring group",
              lane, run.end, run.rank);
        }
      }
    }
  }
  CheckAllUsed(rank_used, "rank");
  CheckAllUsed(lane_used, "lane");
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
  problem = CanonicalOrders(std::move(problem));
  if (problem.orders.empty()) return problem;
  if (problem.grid.q_tokens != problem.grid.kv_tokens ||
      problem.token_grid.Tokens() != problem.grid.q_tokens) {
    throw InputError(
        "[plan] token orders need a token grid of {} query and {} key tokens; it has {}",
        problem.grid.q_tokens, problem.grid.kv_tokens, problem.token_grid.Tokens());
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
  CheckRows(parts_);
  CheckRings(parts_);
  parts_ = CanonicalParts(std::move(parts_));
  stages_ = StagesOf(parts_);
  hash_ = HashParts(parts_);
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
                  const std::vector<UlyssesGroup>& groups, bool needed_kv_only) {
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
    const UlyssesGroup& group = groups[static_cast<size_t>(g)];
    RingGroup ring{.ranks = {}, .lanes = group.lanes, .kv_owner = group.kv_owner};
    for (int32_t r = 0; r < ring_size; ++r) {
      ring.ranks.push_back(g / item_groups * item_groups * ring_size + r * item_groups +
                           g % item_groups);
    }
    RowRuns runs;
    for (int32_t owner : group.q_owner) {
      EQ_CHECK(owner >= 0 && owner < ring_size, "q owner {} in a ring of {}", owner, ring_size);
      runs.push_back({.end = static_cast<int32_t>(runs.size()) + 1,
                      .rank = ring.ranks[static_cast<size_t>(owner)],
                      .stage = 0});
    }
    for (int32_t lane : group.lanes) {
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

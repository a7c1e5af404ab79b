#include "equitile/io/records/plan_file.h"

#include <algorithm>
#include <map>

#include "equitile/io/json_value.h"
#include "equitile/io/records/token_json.h"
#include "equitile/plan/core/home_map.h"

namespace equitile {
namespace {

constexpr int64_t kVersion = 1;
// Sizes that a plan may have in a file; far above any use, so that products of them stay inside 64
// bits.
constexpr int64_t kMaxCount = 1 << 20;

Json TileRanges(const Problem& problem, Side side) {
  Json ranges = Json::array();
  for (int32_t rank = 0; rank < problem.ranks; ++rank) {
    const Range tiles = DefaultHomeTiles(problem, side, rank);
    ranges.push_back({tiles.begin, tiles.end});
  }
  return ranges;
}

Json HomesJson(const Problem& problem) {
  if (problem.homes.empty()) {
    return {{"tile", kHomeTileTokens},
            {"query", TileRanges(problem, Side::kQuery)},
            {"key", TileRanges(problem, Side::kKey)}};
  }
  Json items = Json::array();
  for (auto first = problem.homes.begin(); first != problem.homes.end(); first += problem.ranks)
    items.push_back(std::vector<int64_t>(first, first + problem.ranks));
  return {{"first_tokens", std::move(items)}};
}

Json GridJson(const Problem& problem) {
  Json grid = {{"heads", problem.lanes.heads},
               {"block", problem.grid.block_tokens},
               {"q_tokens", problem.grid.q_tokens},
               {"kv_tokens", problem.grid.kv_tokens}};
  if (!problem.orders.empty()) {
    grid["video"] = ExtentsJson(problem.token_grid);
    grid["text"] = TextJson(problem.token_grid);
    if (problem.token_grid.home != TokenOrder::kFHW)
      grid["home_order"] = TokenOrderName(problem.token_grid.home);
  }
  return grid;
}

Json OrdersJson(const Problem& problem) {
  if (problem.orders.empty()) return TokenOrderName(problem.token_grid.home);
  Json orders = Json::array();
  for (TokenOrder order : problem.orders) orders.push_back(TokenOrderName(order));
  return orders;
}

const RowRuns& RunsOf(const PlanParts& parts, size_t lane) {
  return parts.row_maps[static_cast<size_t>(parts.map_of_lane[lane])];
}

Json RowOwnerJson(const PlanParts& parts) {
  Json lanes = Json::array();
  for (size_t lane = 0; lane < parts.map_of_lane.size(); ++lane) {
    std::vector<int32_t> owners;
    for (const RowRun& run : RunsOf(parts, lane))
      owners.resize(static_cast<size_t>(run.end), run.rank);
    lanes.push_back(std::move(owners));
  }
  return lanes;
}

// A number where all ranks of the lane agree, else [rank, group] pairs.
Json HeadGroupJson(const RowRuns& runs) {
  std::map<int32_t, int32_t> stage_of;
  for (const RowRun& run : runs) stage_of[run.rank] = run.stage;
  const bool one = std::all_of(runs.begin(), runs.end(),
                               [&](const RowRun& run) { return run.stage == runs[0].stage; });
  if (one && !runs.empty()) return runs[0].stage;
  Json pairs = Json::array();
  for (const auto& [rank, stage] : stage_of) pairs.push_back({rank, stage});
  return pairs;
}

Json StagesJson(const PlanParts& parts) {
  const bool exchange = parts.movement == Movement::kExchange;
  Json stages = {{"movement", exchange ? "exchange" : "ring"},
                 {"needed_kv_only", parts.needed_kv_only}};
  if (exchange) {
    stages["head_group"] = Json::array();
    for (size_t lane = 0; lane < parts.map_of_lane.size(); ++lane) {
      stages["head_group"].push_back(HeadGroupJson(RunsOf(parts, lane)));
    }
  } else {
    stages["rings"] = Json::array();
    for (const RingGroup& ring : parts.rings) {
      stages["rings"].push_back({{"ranks", ring.ranks},
                                 {"lanes", ring.lanes},
                                 {"kv_owner", parts.kv_maps[static_cast<size_t>(ring.kv_map)]}});
    }
  }
  return stages;
}

// --- Reading ---

// Empty where the file has the default cut.
std::vector<int64_t> HomesOf(const JsonValue& value, const Problem& problem) {
  const std::optional<JsonValue> items = value.Find("first_tokens");
  if (!items) {
    value.CheckKeys({"tile", "query", "key"});
    return {};
  }
  value.CheckKeys({"first_tokens"});
  std::vector<int64_t> homes;
  items->Size(problem.lanes.batch);
  for (int64_t item = 0; item < problem.lanes.batch; ++item) {
    const JsonValue ranks = items->At(item);
    ranks.Size(problem.ranks);
    for (const int32_t first : ranks.Integers(0, kMaxFileTokens)) homes.push_back(first);
  }
  return homes;
}

Problem ProblemOf(const JsonValue& root) {
  Problem problem;
  problem.ranks = static_cast<int32_t>(root["ranks"].Integer(1, kMaxCount));
  const JsonValue grid = root["grid"];
  grid.CheckKeys({"heads", "block", "q_tokens", "kv_tokens", "video", "text", "home_order"});
  problem.lanes = {.batch = root["batch"].Integer(1, kMaxCount),
                   .heads = grid["heads"].Integer(1, kMaxCount)};
  problem.grid = {.q_tokens = grid["q_tokens"].Integer(1, kMaxFileTokens),
                  .kv_tokens = grid["kv_tokens"].Integer(1, kMaxFileTokens),
                  .block_tokens = grid["block"].Integer(kMinBlockTokens, kMaxBlockTokens)};
  // Before anything is made of that size: what a file may ask for grows with what it holds.
  root["row_owner"].Size(problem.lanes.Count());
  root["work_per_rank"].Size(problem.ranks);
  if (problem.lanes.batch * problem.ranks > kMaxCount)
    root["batch"].Fail("{} items on {} ranks; their product may be at most {}", problem.lanes.batch,
                       problem.ranks, kMaxCount);
  const JsonValue orders = root["orders"];
  if (orders.IsText()) {
    problem.orders.assign(static_cast<size_t>(problem.lanes.Count()), TokenOrderFrom(orders));
  } else {
    const int64_t count = orders.Size(problem.lanes.Count());
    for (int64_t lane = 0; lane < count; ++lane)
      problem.orders.push_back(TokenOrderFrom(orders.At(lane)));
  }
  if (const auto video = grid.Find("video")) {
    problem.token_grid = TokenGridFrom(*video, grid["text"]);
    if (const auto home = grid.Find("home_order")) problem.token_grid.home = TokenOrderFrom(*home);
  }
  problem.homes = HomesOf(root["homes"], problem);
  return problem;
}

PlannerLabel LabelOf(const JsonValue& value) {
  value.CheckKeys({"name", "ulysses", "ring", "parameters"});
  PlannerLabel label{.name = value["name"].Text(),
                     .ulysses = static_cast<int32_t>(value["ulysses"].Integer(0, kMaxCount)),
                     .ring = static_cast<int32_t>(value["ring"].Integer(0, kMaxCount)),
                     .parameters = {}};
  const JsonValue parameters = value["parameters"];
  for (const auto& item : parameters.Items()) {
    if (!item.value().is_string()) parameters.Fail("'{}' must be a text", item.key());
    label.parameters.emplace_back(item.key(), item.value().get<std::string>());
  }
  std::sort(label.parameters.begin(), label.parameters.end());
  return label;
}

// [ranks] head group of the lane on that rank.
std::map<int32_t, int32_t> HeadGroupOf(const JsonValue& value, int32_t ranks) {
  std::map<int32_t, int32_t> stage_of;
  const int64_t count = value.Size();
  for (int64_t i = 0; i < count; ++i) {
    const JsonValue pair = value.At(i);
    pair.Size(2);
    const auto rank = static_cast<int32_t>(pair.At(0).Integer(0, ranks - 1));
    stage_of[rank] = static_cast<int32_t>(pair.At(1).Integer(0, kMaxCount));
  }
  return stage_of;
}

RowRuns RunsFrom(const JsonValue& owners, const std::optional<JsonValue>& head_group,
                 const Problem& problem) {
  const int64_t rows = owners.Size(problem.grid.QBlocks());
  int32_t common = 0;
  std::map<int32_t, int32_t> stage_of;
  const bool one = !head_group || head_group->IsInteger();
  if (head_group && one) common = static_cast<int32_t>(head_group->Integer(0, kMaxCount));
  if (head_group && !one) stage_of = HeadGroupOf(*head_group, problem.ranks);
  RowRuns runs;
  for (int64_t row = 0; row < rows; ++row) {
    const JsonValue owner = owners.At(row);
    const auto rank = static_cast<int32_t>(owner.Integer(0, problem.ranks - 1));
    int32_t stage = common;
    if (!one) {
      const auto found = stage_of.find(rank);
      // A rank that has no group yet: an owner was changed by hand, which the hash will tell.
      stage = found == stage_of.end() ? 0 : found->second;
    }
    if (!runs.empty() && runs.back().rank == rank && runs.back().stage == stage) {
      ++runs.back().end;
    } else {
      runs.push_back({.end = static_cast<int32_t>(row + 1), .rank = rank, .stage = stage});
    }
  }
  return runs;
}

void AddRings(const JsonValue& value, PlanParts& parts) {
  const Problem& problem = parts.problem;
  const int64_t count = value.Size();
  for (int64_t i = 0; i < count; ++i) {
    const JsonValue ring = value.At(i);
    ring.CheckKeys({"ranks", "lanes", "kv_owner"});
    ring["kv_owner"].Size(problem.grid.KvBlocks());
    parts.rings.push_back({.ranks = ring["ranks"].Integers(0, problem.ranks - 1),
                           .lanes = ring["lanes"].Integers(0, problem.lanes.Count() - 1),
                           .kv_map = static_cast<int32_t>(i)});
    parts.kv_maps.push_back(ring["kv_owner"].Integers(0, problem.ranks - 1));
  }
}

PlanParts PartsOf(const JsonValue& root) {
  PlanParts parts;
  parts.problem = ProblemOf(root);
  parts.planner = LabelOf(root["planner"]);
  const JsonValue stages = root["stages"];
  const std::string movement = stages["movement"].Text();
  if (movement != "exchange" && movement != "ring")
    stages["movement"].Fail("must be exchange or ring");
  parts.movement = movement == "ring" ? Movement::kRing : Movement::kExchange;
  parts.needed_kv_only = stages["needed_kv_only"].Bool();

  const JsonValue row_owner = root["row_owner"];
  const int64_t lanes = row_owner.Size();
  std::optional<JsonValue> head_groups;
  if (parts.movement == Movement::kRing) {
    stages.CheckKeys({"movement", "needed_kv_only", "rings"});
    AddRings(stages["rings"], parts);
  } else {
    stages.CheckKeys({"movement", "needed_kv_only", "head_group"});
    head_groups.emplace(stages["head_group"]);
    head_groups->Size(lanes);
  }
  for (int64_t lane = 0; lane < lanes; ++lane) {
    std::optional<JsonValue> head_group;
    if (head_groups) head_group.emplace(head_groups->At(lane));
    parts.row_maps.push_back(RunsFrom(row_owner.At(lane), head_group, parts.problem));
    parts.map_of_lane.push_back(static_cast<int32_t>(lane));
  }
  return CanonicalParts(std::move(parts));
}

}  // namespace

PlanFile MakePlanFile(const Plan& plan, uint64_t mask_hash, const CostModel& cost,
                      std::vector<int64_t> work_per_rank) {
  return {.parts = plan.parts(),
          .hash = plan.hash(),
          .mask_hash = mask_hash,
          .cost = cost,
          .work_per_rank = std::move(work_per_rank),
          .homes_match = true};
}

std::string PlanFileText(const PlanFile& file) {
  const PlanParts& parts = file.parts;
  const Json json = {
      {"version", kVersion},
      {"hash", HashText(file.hash)},
      {"mask_hash", HashText(file.mask_hash)},
      {"ranks", parts.problem.ranks},
      {"grid", GridJson(parts.problem)},
      {"batch", parts.problem.lanes.batch},
      {"homes", HomesJson(parts.problem)},
      {"orders", OrdersJson(parts.problem)},
      {"planner",
       {{"name", parts.planner.name},
        {"ulysses", parts.planner.ulysses},
        {"ring", parts.planner.ring},
        {"parameters", std::map<std::string, std::string>(parts.planner.parameters.begin(),
                                                          parts.planner.parameters.end())}}},
      {"row_owner", RowOwnerJson(parts)},
      {"stages", StagesJson(parts)},
      {"cost", {{"block", file.cost.block}, {"row", file.cost.row}}},
      {"work_per_rank", file.work_per_rank}};
  return JsonText(json) + "\n";
}

PlanFile ParsePlanFile(std::string_view text, std::string_view name) {
  const Json document = ParseJson(text, name);
  const JsonValue root(document, name);
  root.CheckKeys({"version", "hash", "mask_hash", "ranks", "grid", "batch", "homes", "orders",
                  "planner", "row_owner", "stages", "cost", "work_per_rank"});
  if (root["version"].Integer(0, INT32_MAX) != kVersion)
    root["version"].Fail("this program reads version {}", kVersion);
  PlanFile file;
  file.parts = PartsOf(root);
  file.hash = root["hash"].Hash();
  file.mask_hash = root["mask_hash"].Hash();
  const JsonValue cost = root["cost"];
  cost.CheckKeys({"block", "row"});
  file.cost = {.block = cost["block"].Integer(0, INT64_MAX),
               .row = cost["row"].Integer(0, INT64_MAX)};
  const Problem& problem = file.parts.problem;
  CheckCost(file.cost, problem.lanes, problem.grid, problem.ranks);
  const JsonValue work = root["work_per_rank"];
  for (int64_t rank = 0; rank < work.Size(); ++rank)
    file.work_per_rank.push_back(work.At(rank).Integer(0, INT64_MAX));
  file.homes_match = root["homes"].json() == HomesJson(file.parts.problem);
  return file;
}

void WritePlanFile(const std::filesystem::path& path, const PlanFile& file) {
  WriteTextFile(path, PlanFileText(file));
}

PlanFile ReadPlanFile(const std::filesystem::path& path) {
  return ParsePlanFile(ReadTextFile(path), path.string());
}

}  // namespace equitile

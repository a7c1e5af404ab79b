// `equitile inspect plan.json`: a plan in words, and whether the file can be believed.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "apps/cli/table.h"
#include "apps/inspect/inspect.h"
#include "equitile/base/error.h"
#include "equitile/io/json_value.h"
#include "equitile/io/records/mask_file.h"
#include "equitile/io/records/plan_file.h"
#include "equitile/pattern/mask_hash.h"
#include "equitile/plan/core/home_map.h"
#include "equitile/plan/core/validate.h"
#include "equitile/plan/predict/measure.h"
#include "equitile/plan/predict/score.h"

namespace equitile {
namespace {

// What was looked at and what was found; `problems` empty: all is well.
struct Findings {
  std::vector<std::string> checked;
  std::vector<std::string> problems;

  void Check(bool good, const std::string& what, const std::string& problem) {
    checked.push_back(what);
    if (!good) problems.push_back(problem);
  }
};

std::string Listed(const std::vector<int32_t>& numbers) {
  constexpr size_t kMost = 16;
  if (numbers.size() <= kMost) return fmt::format("{}", fmt::join(numbers, ", "));
  return fmt::format("{} and {} more", fmt::join(numbers.begin(), numbers.begin() + kMost, ", "),
                     numbers.size() - kMost);
}

std::optional<Plan> CheckFile(const PlanFile& file, Findings& findings) {
  findings.Check(file.HashMatches(), "hash", "content does not match its hash");
  findings.Check(file.homes_match, "homes", "homes do not follow from tokens, batch and ranks");
  try {
    findings.checked.push_back("owners and stages");
    return Plan(file.parts);
  } catch (const InputError& error) {
    findings.problems.push_back(error.what());
    return std::nullopt;
  }
}

LaneMasks MaskFor(const InspectOptions& options, const Problem& problem) {
  MaskFile mask = ReadMaskFile(options.mask);
  if (mask.lanes().batch != problem.lanes.batch) mask = WithBatch(mask, problem.lanes.batch);
  const int64_t layers = std::ssize(mask.layers), layer = options.layer.value_or(0);
  if (!options.layer && layers > 1)
    throw InputError("{}: has {} layers; choose one with --layer", options.mask, layers);
  if (layer >= layers)
    throw InputError("--layer {}: {} has {}, counted from 0", layer, options.mask, layers);
  return mask.MasksOf(static_cast<size_t>(layer));
}

void CheckWork(const PlanFile& file, const std::vector<int64_t>& work, Findings& findings) {
  std::vector<int32_t> differing;
  for (size_t rank = 0; rank < work.size(); ++rank) {
    if (work[rank] != file.work_per_rank[rank]) differing.push_back(static_cast<int32_t>(rank));
  }
  findings.Check(differing.empty(), "work per rank",
                 fmt::format("work differs on rank{} {}", differing.size() == 1 ? "" : "s",
                             Listed(differing)));
}

// By owners alone, for a file that is no plan; parts of rows are not known then.
std::vector<int64_t> WorkOfOwners(const PlanFile& file, const BlockMask& mask) {
  std::vector<int64_t> work(file.work_per_rank.size(), 0);
  for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
    int64_t row = 0;
    const int32_t map = file.parts.map_of_lane[static_cast<size_t>(lane)];
    for (const RowRun& run : file.parts.row_maps[static_cast<size_t>(map)]) {
      for (; row < run.end; ++row)
        work[static_cast<size_t>(run.rank)] += file.cost.Of(mask.RowCount(lane, row));
    }
  }
  return work;
}

std::vector<int64_t> WorkOf(const PlanFile& file, const Plan& plan, const BlockMask& mask) {
  const StageWork stages = CountStageWork(plan, mask, RowBlocks(mask));
  std::vector<int64_t> work;
  for (int32_t rank = 0; rank < plan.ranks(); ++rank)
    work.push_back(stages.OfRank(rank).Cost(file.cost));
  return work;
}

void CheckAgainstMask(const PlanFile& file, const std::optional<Plan>& plan, const LaneMasks& masks,
                      Findings& findings) {
  CheckMaskFits(CanonicalProblem(file.parts.problem), masks);
  const BlockMask& mask = masks.blocks();
  findings.Check(HashMask(mask) == file.mask_hash, "mask hash",
                 "the plan was made for another mask");
  if (!plan) {
    if (file.cost.row == 0) CheckWork(file, WorkOfOwners(file, mask), findings);
    return;
  }
  const std::optional<std::string> violation = Validate(Lower(*plan, masks), mask);
  findings.Check(!violation, "every kept block exactly once", violation.value_or(""));
  CheckWork(file, WorkOf(file, *plan, mask), findings);
}

std::string MovementText(const Plan& plan) {
  const char* kv = plan.needed_kv_only() ? "only K/V blocks that the mask asks for" : "all K/V";
  if (plan.movement() == Movement::kExchange) {
    const Donated donated = CountDonated(plan);
    return fmt::format(
        "one exchange each way in {} head group{}, {}; {} of {} lanes lie on several ranks",
        plan.Stages(), plan.Stages() == 1 ? "" : "s", kv, donated.split_lanes,
        plan.problem().lanes.Count());
  }
  const Moved moved = CountMoved(plan);
  return fmt::format("{} ring{} of {} rank{}, {}; {:g} query and {:g} key blocks leave their chunk",
                     plan.rings().size(), plan.rings().size() == 1 ? "" : "s", plan.Stages(),
                     plan.Stages() == 1 ? "" : "s", kv, moved.q_blocks.value_or(0),
                     moved.kv_blocks.value_or(0));
}

std::string PlannerText(const PlannerLabel& label) {
  std::vector<std::string> parameters;
  for (const auto& [key, value] : label.parameters) parameters.push_back(key + " " + value);
  return parameters.empty() ? label.Text()
                            : fmt::format("{} ({})", label.Text(), fmt::join(parameters, ", "));
}

// Tiles on the line of the default cut; where homes are given, the tokens of each batch item.
std::string HomeText(const Problem& problem, const HomeMap& homes, int32_t rank) {
  const auto text = [](Range range) { return fmt::format("{}-{}", range.begin, range.end); };
  if (problem.homes.empty()) return text(DefaultHomeTiles(problem, Side::kQuery, rank));
  std::vector<std::string> items;
  for (int64_t item = 0; item < problem.lanes.batch; ++item)
    items.push_back(text(homes.RankTokens(Side::kQuery, rank, item)));
  return fmt::format("{}", fmt::join(items, " "));
}

Table RankTable(const PlanFile& file, const Plan& plan) {
  const HomeMap homes(plan.problem());
  std::vector<int64_t> rows(static_cast<size_t>(plan.ranks()), 0),
      lanes(static_cast<size_t>(plan.ranks()), 0);
  for (int64_t lane = 0; lane < plan.problem().lanes.Count(); ++lane) {
    std::vector<int32_t> owners = plan.RowOwners(lane);
    for (int32_t owner : owners) ++rows[static_cast<size_t>(owner)];
    std::sort(owners.begin(), owners.end());
    owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
    for (int32_t owner : owners) ++lanes[static_cast<size_t>(owner)];
  }
  const int64_t total =
      std::accumulate(file.work_per_rank.begin(), file.work_per_rank.end(), int64_t{0});
  const bool tiles = plan.problem().homes.empty();
  Table table({{"rank"},
               {tiles ? "home_tiles" : "home_tokens"},
               {"lanes"},
               {"rows"},
               {"work"},
               {"of_mean"}});
  for (int32_t rank = 0; rank < plan.ranks(); ++rank) {
    const size_t r = static_cast<size_t>(rank);
    const double of_mean = total == 0 ? 1
                                      : static_cast<double>(file.work_per_rank[r]) * plan.ranks() /
                                            static_cast<double>(total);
    table.Add({int64_t{rank}, HomeText(plan.problem(), homes, rank), lanes[r], rows[r],
               file.work_per_rank[r], Cell(of_mean, 3)});
  }
  return table;
}

void PrintWords(const InspectOptions& options, const PlanFile& file,
                const std::optional<Plan>& plan, const Findings& findings) {
  const Problem& problem = file.parts.problem;
  const Terminal terminal = Terminal::Of(stdout);
  const auto line = [&](std::string_view what, const std::string& text) {
    fmt::print("{} {}\n", terminal.Dim(fmt::format("{:<10}", what)), text);
  };
  line("plan", options.path);
  line("planner", PlannerText(file.parts.planner));
  line("for",
       fmt::format("{} ranks; batch {} x {} heads, {} x {} blocks of {} tokens", problem.ranks,
                   problem.lanes.batch, problem.lanes.heads, problem.grid.QBlocks(),
                   problem.grid.KvBlocks(), problem.grid.block_tokens));
  line("hash", fmt::format("{}, for mask {}", HashText(file.hash), HashText(file.mask_hash)));
  if (!problem.orders.empty()) {
    const auto natural =
        std::count(problem.orders.begin(), problem.orders.end(), problem.token_grid.home);
    line("orders", fmt::format("{} of {} lanes are not in home order",
                               std::ssize(problem.orders) - natural, problem.orders.size()));
  }
  if (plan) {
    line("movement", MovementText(*plan));
    line("result", plan->SplitsRows()
                       ? "rows are computed in parts: agrees with one rank within a bound"
                       : "every row whole on one rank: the same bits on any number of ranks");
  }
  line("checked", fmt::format("{}", fmt::join(findings.checked, ", ")));
  if (plan) fmt::print("\n{}", RankTable(file, *plan).ToText(terminal));
}

Json Describe(const InspectOptions& options, const PlanFile& file, const std::optional<Plan>& plan,
              const Findings& findings) {
  const Problem& problem = file.parts.problem;
  return {{"file", options.path},
          {"kind", "plan"},
          {"planner", file.parts.planner.Text()},
          {"parameters", std::map<std::string, std::string>(file.parts.planner.parameters.begin(),
                                                            file.parts.planner.parameters.end())},
          {"ranks", problem.ranks},
          {"batch", problem.lanes.batch},
          {"heads", problem.lanes.heads},
          {"q_blocks", problem.grid.QBlocks()},
          {"kv_blocks", problem.grid.KvBlocks()},
          {"block", problem.grid.block_tokens},
          {"hash", HashText(file.hash)},
          {"mask_hash", HashText(file.mask_hash)},
          {"stages", plan ? Json(plan->Stages()) : Json(nullptr)},
          {"splits_rows", plan ? Json(plan->SplitsRows()) : Json(nullptr)},
          {"work_per_rank", file.work_per_rank},
          {"checked", findings.checked},
          {"problems", findings.problems},
          {"ok", findings.problems.empty()}};
}

}  // namespace

void InspectPlan(const InspectOptions& options) {
  if (options.head || options.each_head || !options.png.empty()) {
    throw InputError("{}: a plan has no picture; --head, --each-head and --png are for masks",
                     options.path);
  }
  if (options.layer && options.mask.empty())
    throw InputError("--layer: is for --mask, which is missing");
  const PlanFile file = ReadPlanFile(options.path);
  Findings findings;
  const std::optional<Plan> plan = CheckFile(file, findings);
  if (!options.mask.empty()) {
    CheckAgainstMask(file, plan, MaskFor(options, file.parts.problem), findings);
  }
  if (options.json) {
    PrintJson(Describe(options, file, plan, findings));
  } else {
    PrintWords(options, file, plan, findings);
  }
  if (!findings.problems.empty())
    throw Error("{}: {}", options.path, fmt::join(findings.problems, "; "));
}

}  // namespace equitile

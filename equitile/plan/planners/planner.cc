#include "equitile/plan/planners/planner.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "equitile/base/error.h"
#include "equitile/plan/planners/dbsp/dbsp_plus.h"
#include "equitile/plan/planners/fractional/fractional.h"
#include "equitile/plan/planners/static_planner.h"
#include "equitile/plan/predict/measure.h"

namespace equitile {
namespace {

struct NamedPlanner {
  std::string_view name;
  PlannerKind kind;
  bool has_degrees, chooses;
};

constexpr std::array<NamedPlanner, 8> kPlanners = {{
    {"ulysses", PlannerKind::kUlysses, false, false},
    {"ring", PlannerKind::kRing, false, false},
    {"usp", PlannerKind::kUsp, true, false},
    {"dbsp", PlannerKind::kDbsp, true, false},
    {"dbsp+", PlannerKind::kDbspPlus, true, false},
    {"fractional", PlannerKind::kFractional, false, false},
    {"auto", PlannerKind::kAuto, false, true},
    {"dbsp:auto", PlannerKind::kDbspAuto, false, true},
}};

const NamedPlanner& Named(PlannerKind kind) { return kPlanners[static_cast<size_t>(kind)]; }

// "4x2"; {0, 0} if it is anything else.
PlannerSpec ParseDegrees(std::string_view text) {
  PlannerSpec spec;
  const char* end = text.data() + text.size();
  const auto [cross, first_error] = std::from_chars(text.data(), end, spec.ulysses);
  if (first_error != std::errc{} || cross == end || *cross != 'x') return {};
  const auto [rest, second_error] = std::from_chars(cross + 1, end, spec.ring);
  if (second_error != std::errc{} || rest != end) return {};
  return spec;
}

PlannerLabel LabelOf(const PlannerSpec& spec) {
  return {.name = std::string(Named(spec.kind).name),
          .ulysses = spec.ulysses,
          .ring = spec.ring,
          .parameters = {}};
}

const char* BalanceName(DbspBalance balance) {
  constexpr std::array kNames = {"heads", "blocks", "both"};
  return kNames[static_cast<size_t>(balance)];
}

PlannerLabel DbspLabel(const PlannerSpec& spec, const DbspOptions& options) {
  PlannerLabel label = LabelOf(spec);
  const int64_t whole = static_cast<int64_t>(options.reward);  // as good as always: faster to print
  label.parameters.reserve(4);
  label.parameters.emplace_back("balance", BalanceName(options.balance));
  label.parameters.emplace_back("blocks", options.blocks == DbspBlocks::kSwap ? "swap" : "greedy");
  label.parameters.emplace_back(
      "head_order", options.head_order == DbspHeadOrder::kWeight ? "weight" : "assignment");
  label.parameters.emplace_back("reward", static_cast<double>(whole) == options.reward
                                              ? std::to_string(whole)
                                              : fmt::format("{}", options.reward));
  return label;
}

PlannerLabel DbspPlusLabel(const PlannerSpec& spec, const DbspOptions& options) {
  PlannerLabel label = LabelOf(spec);
  label.parameters.emplace_back("balance", BalanceName(options.balance));
  return label;
}

// What moving a block costs, in kept blocks of the busiest rank's time: dbsp+'s own price, which is
// for 64 tokens, 100 GFLOP/s and 12.5 GB/s, with this cluster's rates. A block's compute grows with
// its tokens squared, its bytes only with its tokens.
double PriceOfMove(const BlockMask& mask, int32_t ulysses, int32_t ring, const Cluster& cluster) {
  const double usual = static_cast<double>(mask.LaneCount()) / (4.0 * ulysses * ring);
  return usual * (cluster.gflops / 100) * (12.5e9 / cluster.FarBytesPerSecond()) *
         (64.0 / static_cast<double>(mask.grid().block_tokens));
}

// The lanes of one batch item as a mask of their own.
BlockMask ItemMask(const BlockMask& mask, int64_t item) {
  BlockMask part({.batch = 1, .heads = mask.lanes().heads}, mask.grid());
  const size_t words =
      static_cast<size_t>(mask.lanes().heads * mask.QBlocks() * mask.WordsPerRow());
  const auto from = mask.Words().subspan(static_cast<size_t>(item) * words, words);
  std::copy(from.begin(), from.end(), part.MutableRow(0, 0).data());
  return part;
}

// The cells that a layout has counted, as work of the ranks of groups first_group ...
void AddCells(const DbspLayout& layout, const Plan& plan, size_t first_group, StageWork& work) {
  const int64_t ring = layout.ring;
  for (int64_t u = 0; u < layout.ulysses; ++u) {
    const std::vector<int32_t>& ranks = plan.rings()[first_group + static_cast<size_t>(u)].ranks;
    for (int64_t r = 0; r < ring; ++r) {
      for (int64_t c = 0; c < ring; ++c) {
        work.At(ranks[static_cast<size_t>(r)], static_cast<int32_t>((c - r + ring) % ring)).blocks =
            layout.Cell(u, r, c);
      }
    }
  }
}

bool SplitsRows(const PlannerSpec& spec, int64_t batch, int32_t ranks) {
  const int32_t ring = spec.kind == PlannerKind::kRing ? ranks : std::max(spec.ring, 1);
  return SplitBatch(batch, ranks / ring, ring).ring > 1;
}

// What a planner chooses from. Who asks for dbsp:auto asks for layouts that split rows, as with
// dbsp:UxR; auto takes them only where it is told that bits may depend on the layout.
std::vector<PlannerSpec> CandidatesOf(const PlannerSpec& chooser, int64_t batch, int32_t ranks,
                                      bool reproducible) {
  const bool only_dbsp = chooser.kind == PlannerKind::kDbspAuto;
  std::vector<PlannerSpec> candidates = AllPlanners(ranks);
  std::erase_if(candidates, [&](const PlannerSpec& spec) {
    return only_dbsp ? spec.kind != PlannerKind::kDbsp
                     : reproducible && SplitsRows(spec, batch, ranks);
  });
  return candidates;
}

// No prediction of Simulate is below it.
double BusiestSeconds(const MadePlan& made, const BlockGrid& grid, const Cluster& cluster) {
  double busiest = 0;
  for (int32_t rank = 0; rank < made.plan.ranks(); ++rank) {
    const Work work = made.work->OfRank(rank);
    busiest = std::max(busiest, (static_cast<double>(work.blocks) * cluster.BlockSeconds(grid) +
                                 static_cast<double>(work.rows) * cluster.row_seconds) /
                                    cluster.Speed(rank));
  }
  return busiest;
}

// A db-SP layout for each batch item that has its own ranks, or one for all lanes.
template <typename MakeLayout>
MadePlan PlanLayouts(const Problem& problem, const BlockMask& mask, const PlannerSpec& spec,
                     PlannerLabel label, bool needed_kv_only, bool keep_cells,
                     const MakeLayout& make_layout) {
  const BatchSplit split = SplitBatch(problem.lanes.batch, spec.ulysses, spec.ring);
  std::vector<DbspLayout> layouts;
  layouts.reserve(static_cast<size_t>(split.items));  // groups look into them
  std::vector<UlyssesGroup> groups;
  groups.reserve(static_cast<size_t>(split.items * split.ulysses));
  for (int32_t item = 0; item < split.items; ++item) {
    layouts.push_back(split.items == 1
                          ? make_layout(mask, split.ulysses, split.ring)
                          : make_layout(ItemMask(mask, item), split.ulysses, split.ring));
    DbspLayout& layout = layouts.back();
    const int32_t first_lane = static_cast<int32_t>(item * problem.lanes.Count() / split.items);
    for (int32_t& lane : layout.lane_perm) lane += first_lane;
    for (int64_t u = 0; u < layout.ulysses; ++u) {
      groups.push_back({.lanes = layout.GroupLanes(u),
                        .q_owner = layout.QOwner(u),
                        .kv_owner = layout.KvOwner(u)});
    }
  }
  MadePlan made{.plan = MakeRingPlan(problem, std::move(label), groups, needed_kv_only),
                .work = std::nullopt};
  if (keep_cells) {
    made.work = StageWork{.ranks = problem.ranks, .stages = split.ring, .work = {}};
    made.work->work.resize(static_cast<size_t>(int64_t{problem.ranks} * split.ring));
    for (size_t item = 0; item < layouts.size(); ++item) {
      AddCells(layouts[item], made.plan, item * static_cast<size_t>(split.ulysses), *made.work);
    }
  }
  return made;
}

}  // namespace

std::string PlannerSpec::Text() const {
  const NamedPlanner& planner = Named(kind);
  return planner.has_degrees ? fmt::format("{}:{}x{}", planner.name, ulysses, ring)
                             : std::string(planner.name);
}

PlannerKind ParsePlannerKind(std::string_view text) {
  const auto named = [&](std::string_view name) {
    return std::find_if(kPlanners.begin(), kPlanners.end(),
                        [&](const NamedPlanner& p) { return p.name == name; });
  };
  auto planner = named(text);  // one of them has a colon in its name
  if (planner == kPlanners.end()) planner = named(text.substr(0, text.find(':')));
  if (planner == kPlanners.end()) {
    throw InputError(
        "[plan] unknown planner '{}'; use ulysses, ring, usp:UxR, dbsp:UxR, dbsp+:UxR, fractional, "
        "dbsp:auto or auto",
        text);
  }
  return planner->kind;
}

bool HasDegrees(PlannerKind kind) { return Named(kind).has_degrees; }
bool Chooses(PlannerKind kind) { return Named(kind).chooses; }

PlannerSpec ParsePlanner(std::string_view text, int32_t ranks) {
  const NamedPlanner& planner = Named(ParsePlannerKind(text));
  const size_t colon = text.find(':');
  if (!planner.has_degrees) {
    if (text != planner.name)
      throw InputError("[plan] planner '{}': {} has no degrees", text, planner.name);
    return {.kind = planner.kind, .ulysses = 0, .ring = 0};
  }
  PlannerSpec spec =
      colon == std::string_view::npos ? PlannerSpec{} : ParseDegrees(text.substr(colon + 1));
  if (spec.ulysses < 1 || spec.ring < 1) {
    throw InputError("[plan] planner '{}': needs two degrees, like {}:{}x1", text, planner.name,
                     ranks);
  }
  if (int64_t{spec.ulysses} * spec.ring != ranks) {
    throw InputError("[plan] planner '{}': {} x {} = {} ranks, but there are {}", text,
                     spec.ulysses, spec.ring, int64_t{spec.ulysses} * spec.ring, ranks);
  }
  spec.kind = planner.kind;
  return spec;
}

std::vector<PlannerSpec> AllPlanners(int32_t ranks) {
  std::vector<PlannerSpec> all = {{.kind = PlannerKind::kFractional, .ulysses = 0, .ring = 0},
                                  {.kind = PlannerKind::kUlysses, .ulysses = 0, .ring = 0},
                                  {.kind = PlannerKind::kRing, .ulysses = 0, .ring = 0}};
  for (PlannerKind kind : {PlannerKind::kUsp, PlannerKind::kDbsp, PlannerKind::kDbspPlus}) {
    for (int32_t ulysses = ranks; ulysses >= 1; --ulysses) {
      if (ranks % ulysses == 0)
        all.push_back({.kind = kind, .ulysses = ulysses, .ring = ranks / ulysses});
    }
  }
  return all;
}

bool MaySplitRows(const PlannerSpec& spec, int64_t batch, int32_t ranks, bool reproducible) {
  if (!Chooses(spec.kind)) return SplitsRows(spec, batch, ranks);
  const std::vector<PlannerSpec> candidates = CandidatesOf(spec, batch, ranks, reproducible);
  return std::any_of(candidates.begin(), candidates.end(), [&](const PlannerSpec& candidate) {
    return SplitsRows(candidate, batch, ranks);
  });
}

std::vector<PlannerSpec> ParsePlanners(std::string_view text, int32_t ranks) {
  if (ranks < 1) throw InputError("[plan] {} ranks: at least 1", ranks);
  std::vector<PlannerSpec> specs;
  auto add = [&](const PlannerSpec& spec) {
    if (std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(spec);
  };
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    if (part == "all") {
      for (const PlannerSpec& spec : AllPlanners(ranks)) add(spec);
      for (const NamedPlanner& planner : kPlanners) {
        if (planner.chooses) add({.kind = planner.kind, .ulysses = 0, .ring = 0});
      }
    } else {
      add(ParsePlanner(part, ranks));
    }
    begin = end + 1;
  }
  return specs;
}

void ApplyMachine(const Machine& machine, const BlockGrid& grid, PlanOptions& options,
                  std::string_view dtype) {
  ApplyMachine(machine, grid.block_tokens, dtype, options.cluster);
  options.cost = CostInPicoseconds(options.cluster, grid);
}

Problem ProblemFor(const LaneMasks& masks, const PlanOptions& options) {
  return CheckedProblem({.ranks = options.ranks,
                         .lanes = masks.blocks().lanes(),
                         .grid = masks.blocks().grid(),
                         .token_grid = masks.token_grid(),
                         .orders = masks.orders(),
                         .homes = options.homes});
}

MadePlan MakePlan(const PlannerSpec& spec, const LaneMasks& masks, RowCounts& rows,
                  const PlanOptions& options) {
  const BlockMask& mask = masks.blocks();
  const Problem problem = ProblemFor(masks, options);
  CheckCluster(options.cluster, options.ranks);
  CheckCost(options.cost, problem.lanes, problem.grid, options.ranks);
  // Layouts count blocks, not rows.
  const bool keep_cells = options.cost.row == 0 && options.cluster.row_seconds == 0;
  switch (spec.kind) {
    case PlannerKind::kUlysses:
      return {PlanUlysses(problem), std::nullopt};
    case PlannerKind::kRing:
      return {PlanRing(problem), std::nullopt};
    case PlannerKind::kUsp:
      return {PlanUsp(problem, spec.ulysses, spec.ring), std::nullopt};
    case PlannerKind::kDbsp:
      return PlanLayouts(problem, mask, spec, DbspLabel(spec, options.dbsp),
                         /*needed_kv_only=*/false, keep_cells,
                         [&](const BlockMask& m, int32_t u, int32_t r) {
                           return MakeDbsp(m, u, r, options.dbsp);
                         });
    case PlannerKind::kDbspPlus:
      return PlanLayouts(
          problem, mask, spec, DbspPlusLabel(spec, options.dbsp), /*needed_kv_only=*/true,
          keep_cells, [&](const BlockMask& m, int32_t u, int32_t r) {
            return MakeDbspPlus(
                m, u, r,
                {.price = PriceOfMove(m, u, r, options.cluster), .balance = options.dbsp.balance});
          });
    case PlannerKind::kFractional:
      return {PlanFractional(problem, mask, rows.Blocks(), options.cost, options.cluster),
              std::nullopt};
    case PlannerKind::kAuto:
    case PlannerKind::kDbspAuto:
      return BestCandidate(spec, masks, rows, options).made;
  }
  EQ_CHECK(false, "planner {}", static_cast<int>(spec.kind));
}

Plan MakePlan(std::string_view spec, const LaneMasks& masks, const PlanOptions& options) {
  RowCounts rows(masks.blocks());
  return MakePlan(ParsePlanner(spec, options.ranks), masks, rows, options).plan;
}

double PredictedSeconds(const PlannerSpec& chooser, MadePlan& made, const LaneMasks& masks,
                        RowCounts& rows, const PlanOptions& options) {
  const Plan& plan = made.plan;
  if (!made.work) made.work = CountStageWork(plan, masks.blocks(), rows.Blocks());
  if (chooser.kind == PlannerKind::kDbspAuto) {
    const double rho = MeasureImbalance(plan, *made.work, options.cost, options.cluster.speeds).rho;
    return PaperLatency(plan, masks.blocks().Kept(), rho, options.cluster);
  }
  return Simulate(Lower(plan, masks), HomeMap(plan.problem()), *made.work, options.cluster).seconds;
}

std::vector<Candidate> RankCandidates(const PlannerSpec& chooser, const LaneMasks& masks,
                                      RowCounts& rows, const PlanOptions& options) {
  std::vector<Candidate> candidates;
  for (const PlannerSpec& spec :
       CandidatesOf(chooser, masks.blocks().lanes().batch, options.ranks, options.reproducible)) {
    Candidate candidate{.spec = spec, .made = MakePlan(spec, masks, rows, options)};
    candidate.seconds = PredictedSeconds(chooser, candidate.made, masks, rows, options);
    candidates.push_back(std::move(candidate));
  }
  // Equal predictions keep the order of AllPlanners: our own first, then the simplest.
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
  return candidates;
}

Candidate BestCandidate(const PlannerSpec& chooser, const LaneMasks& masks, RowCounts& rows,
                        const PlanOptions& options) {
  // Sums in another order than the simulation's: what is as good as equal is not left out.
  constexpr double kRounding = 1e-9;
  const BlockMask& mask = masks.blocks();
  std::optional<Candidate> best;
  for (const PlannerSpec& spec :
       CandidatesOf(chooser, mask.lanes().batch, options.ranks, options.reproducible)) {
    Candidate candidate{.spec = spec, .made = MakePlan(spec, masks, rows, options)};
    if (!candidate.made.work)
      candidate.made.work = CountStageWork(candidate.made.plan, mask, rows.Blocks());
    if (best && chooser.kind == PlannerKind::kAuto &&
        BusiestSeconds(candidate.made, mask.grid(), options.cluster) >
            best->seconds * (1 + kRounding)) {
      continue;
    }
    candidate.seconds = PredictedSeconds(chooser, candidate.made, masks, rows, options);
    if (!best || candidate.seconds < best->seconds) best = std::move(candidate);
  }
  return std::move(*best);
}

}  // namespace equitile

#include "equitile/plan/predict/measure.h"

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "equitile/base/range.h"

namespace equitile {
namespace {

// Sums of maxima, in integers without speeds and in doubles with them.
template <typename Number>
struct Critical {
  Number group{}, paper{};
};

template <typename Number, typename CostOf>
Critical<Number> FindCritical(const Plan& plan, const CostOf& cost) {
  Critical<Number> critical;
  if (!plan.SplitsRows()) {
    for (int32_t rank = 0; rank < plan.ranks(); ++rank) {
      Number sum{};
      for (int32_t stage = 0; stage < plan.Stages(); ++stage) sum += cost(rank, stage);
      critical.group = std::max(critical.group, sum);
    }
    critical.paper = critical.group;
    return critical;
  }
  std::vector<Number> paper(static_cast<size_t>(plan.Stages()));
  for (const RingGroup& ring : plan.rings()) {
    Number sum{};
    for (int32_t stage = 0; stage < plan.Stages(); ++stage) {
      Number max{};
      for (int32_t rank : ring.ranks) max = std::max(max, cost(rank, stage));
      sum += max;
      paper[static_cast<size_t>(stage)] = std::max(paper[static_cast<size_t>(stage)], max);
    }
    critical.group = std::max(critical.group, sum);
  }
  critical.paper = std::accumulate(paper.begin(), paper.end(), Number{});
  return critical;
}

// Of the rows of one ring's lanes, those outside the even part of their ring rank.
int64_t MovedRows(const RowRuns& runs, const std::vector<Range>& home_of_rank) {
  int64_t moved = 0, begin = 0;
  for (const RowRun& run : runs) {
    const Range home = home_of_rank[static_cast<size_t>(run.rank)];
    const int64_t stay = std::min<int64_t>(run.end, home.end) - std::max(begin, home.begin);
    moved += run.end - begin - std::max<int64_t>(0, stay);
    begin = run.end;
  }
  return moved;
}

int64_t MovedColumns(const std::vector<int32_t>& owner, int64_t ring_size) {
  int64_t moved = 0;
  for (int32_t r = 0; r < ring_size; ++r) {
    const Range home = EvenPart(std::ssize(owner), r, ring_size);
    moved += home.size() - std::count(owner.begin() + home.begin, owner.begin() + home.end, r);
  }
  return moved;
}

}  // namespace

Imbalance MeasureImbalance(const Plan& plan, const StageWork& work, const CostModel& model,
                           std::span<const double> speeds) {
  Imbalance out;
  for (const Work& item : work.work) out.total += item.Cost(model);
  if (out.total == 0) return out;
  double shares = plan.ranks();
  if (speeds.empty()) {
    const auto critical = FindCritical<int64_t>(
        plan, [&](int32_t rank, int32_t stage) { return work.At(rank, stage).Cost(model); });
    out.critical = static_cast<double>(critical.group);
    out.critical_paper = static_cast<double>(critical.paper);
  } else {
    const auto critical = FindCritical<double>(plan, [&](int32_t rank, int32_t stage) {
      return static_cast<double>(work.At(rank, stage).Cost(model)) /
             speeds[static_cast<size_t>(rank)];
    });
    out.critical = critical.group;
    out.critical_paper = critical.paper;
    shares = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  }
  out.rho = out.critical * shares / static_cast<double>(out.total);
  out.rho_paper = out.critical_paper * shares / static_cast<double>(out.total);
  return out;
}

Moved CountMoved(const Plan& plan) {
  if (plan.movement() == Movement::kExchange) {
    if (plan.KeepsLanesWhole()) return {.q_blocks = 0, .kv_blocks = 0};
    return {};
  }
  if (plan.Stages() == 1) return {.q_blocks = 0, .kv_blocks = 0};
  const int64_t ring_size = plan.Stages();
  const int64_t q_blocks = plan.problem().grid.QBlocks();
  int64_t q_moved = 0, kv_moved = 0, groups = 0;
  std::vector<Range> home_of_rank(static_cast<size_t>(plan.ranks()));
  std::vector<int64_t> moved_of_map(plan.parts().kv_maps.size(), -1);
  for (const RingGroup& ring : plan.rings()) {
    if (ring.lanes.empty()) continue;
    for (size_t r = 0; r < ring.ranks.size(); ++r) {
      home_of_rank[static_cast<size_t>(ring.ranks[r])] =
          EvenPart(q_blocks, static_cast<int64_t>(r), ring_size);
    }
    q_moved += MovedRows(plan.RunsOf(ring.lanes.front()), home_of_rank);
    int64_t& moved = moved_of_map[static_cast<size_t>(ring.kv_map)];
    if (moved < 0) moved = MovedColumns(plan.KvOwner(ring), ring_size);
    kv_moved += moved;
    ++groups;
  }
  return {.q_blocks = static_cast<double>(q_moved) / static_cast<double>(groups),
          .kv_blocks = static_cast<double>(kv_moved) / static_cast<double>(groups)};
}

Donated CountDonated(const Plan& plan) {
  Donated donated;
  std::vector<int64_t> rows_on(static_cast<size_t>(plan.ranks()));
  for (int64_t lane = 0; lane < plan.problem().lanes.Count(); ++lane) {
    const RowRuns& runs = plan.RunsOf(lane);
    int64_t begin = 0, most = 0, owners = 0;
    for (const RowRun& run : runs) {
      int64_t& rows = rows_on[static_cast<size_t>(run.rank)];
      owners += rows == 0;
      rows += run.end - begin;
      most = std::max(most, rows);
      begin = run.end;
    }
    for (const RowRun& run : runs) rows_on[static_cast<size_t>(run.rank)] = 0;
    donated.rows += plan.problem().grid.QBlocks() - most;
    donated.split_lanes += owners > 1;
  }
  return donated;
}

}  // namespace equitile

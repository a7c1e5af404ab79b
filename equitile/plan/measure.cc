#include "equitile/plan/measure.h"

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "equitile/base/range.h"
#include "equitile/plan/static_planner.h"

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

int64_t MovedOf(const std::vector<int32_t>& owner, const std::vector<int32_t>& home) {
  return std::inner_product(owner.begin(), owner.end(), home.begin(), int64_t{0}, std::plus<>(),
                            std::not_equal_to<>());
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
    if (plan.planner().name == "ulysses") return {.q_blocks = 0, .kv_blocks = 0};
    return {};
  }
  if (plan.Stages() == 1) return {.q_blocks = 0, .kv_blocks = 0};
  const int64_t ring_size = plan.Stages();
  const std::vector<int32_t> q_home = EvenOwners(plan.problem().grid.QBlocks(), ring_size);
  const std::vector<int32_t> kv_home = EvenOwners(plan.problem().grid.KvBlocks(), ring_size);
  double q_moved = 0, kv_moved = 0, groups = 0;
  std::vector<int32_t> ring_rank(static_cast<size_t>(plan.ranks()), 0);
  for (const RingGroup& ring : plan.rings()) {
    if (ring.lanes.empty()) continue;
    for (size_t r = 0; r < ring.ranks.size(); ++r)
      ring_rank[static_cast<size_t>(ring.ranks[r])] = static_cast<int32_t>(r);
    std::vector<int32_t> q_owner = plan.RowOwners(ring.lanes.front());
    for (int32_t& owner : q_owner) owner = ring_rank[static_cast<size_t>(owner)];
    q_moved += static_cast<double>(MovedOf(q_owner, q_home));
    kv_moved += static_cast<double>(MovedOf(plan.KvOwner(ring), kv_home));
    ++groups;
  }
  return {.q_blocks = q_moved / groups, .kv_blocks = kv_moved / groups};
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

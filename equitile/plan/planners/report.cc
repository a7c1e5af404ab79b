#include "equitile/plan/planners/report.h"

#include <algorithm>
#include <numeric>

#include "equitile/base/duration.h"
#include "equitile/base/error.h"
#include "equitile/plan/predict/accounts.h"

namespace equitile {
namespace {

std::string Ms(double seconds) {
  if (seconds >= 1) return DurationText(seconds);
  return fmt::format("{:.{}f} ms", seconds * 1e3, seconds < 0.01 ? 3 : 1);
}

// The part of the time in which `other` loses most against `best`.
std::string LossOf(const PlanReport& best, const PlanReport& other) {
  const double wait = other.prediction.wait - best.prediction.wait;
  const double exchange = other.prediction.exchange - best.prediction.exchange;
  const double compute = other.prediction.compute - best.prediction.compute;
  if (wait >= exchange && wait >= compute) {
    return fmt::format("its ranks wait {} longer for each other (rho {:.3f} against {:.3f})",
                       Ms(wait), other.rho, best.rho);
  }
  if (exchange >= compute) {
    return fmt::format(
        "{} more of its exchange is not hidden behind computing ({:.4g} MB per rank against "
        "{:.4g})",
        Ms(exchange), static_cast<double>(other.bytes_max) * 1e-6,
        static_cast<double>(best.bytes_max) * 1e-6);
  }
  return fmt::format("it computes {} longer, since rows come in parts", Ms(compute));
}

}  // namespace

PlanReport MakeReport(const Plan& plan, const Score& score, const LaneMasks& masks, RowCounts& rows,
                      const PlanOptions& options) {
  const BlockMask& mask = masks.blocks();
  const Program program = Lower(plan, masks);
  const HomeMap homes(plan.problem());
  const Accounts accounts = TakeAccounts(program, homes, mask, options.cluster.wire);
  const LowerBounds bounds =
      FindBounds(plan, mask, rows.Blocks(), score.imbalance, options.cost, options.cluster.speeds);

  PlanReport report;
  report.planner = plan.planner().Text();
  report.plan = plan;
  report.rho = score.imbalance.rho;
  report.rho_paper = score.imbalance.rho_paper;
  report.bound = bounds.kind;
  report.bound_any = bounds.any;
  report.moved = score.moved;
  if (plan.movement() == Movement::kExchange && !plan.KeepsLanesWhole())
    report.donated = CountDonated(plan);
  report.bytes_max = score.traffic.Max();
  report.bytes_mean = score.traffic.Mean();
  report.messages = accounts.messages;
  report.buffer_bytes_max = accounts.BufferMax();
  report.prediction = Simulate(program, homes, score.work, options.cluster);
  const int64_t kept = mask.Kept();
  report.paper_seconds = PaperLatency(plan, kept, report.rho, options.cluster);
  for (int32_t rank = 0; rank < plan.ranks(); ++rank) {
    report.work_per_rank.push_back(score.work.OfRank(rank).Cost(options.cost));
  }
  return report;
}

RingOwners OwnersOf(const Plan& plan) {
  RingOwners owners;
  for (const RingGroup& ring : plan.rings()) {
    owners.head_perm.insert(owners.head_perm.end(), ring.lanes.begin(), ring.lanes.end());
    owners.kv_owner.push_back(plan.KvOwner(ring));
    std::vector<int32_t> rows;
    if (!ring.lanes.empty()) rows = plan.RowOwners(ring.lanes.front());
    for (int32_t& owner : rows) {
      owner = static_cast<int32_t>(std::find(ring.ranks.begin(), ring.ranks.end(), owner) -
                                   ring.ranks.begin());
    }
    owners.q_owner.push_back(std::move(rows));
  }
  return owners;
}

std::vector<size_t> BestFirst(const std::vector<PlanReport>& reports) {
  std::vector<size_t> order(reports.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reports[a].prediction.seconds < reports[b].prediction.seconds;
  });
  return order;
}

std::string WhyBest(const std::vector<PlanReport>& reports, size_t best) {
  const PlanReport& winner = reports[best];
  const double seconds = winner.prediction.seconds;
  const std::string head =
      fmt::format("{}: {} predicted, of which {:.1f} % is computing", winner.planner, Ms(seconds),
                  seconds > 0 ? 100 * winner.prediction.compute / seconds : 100.0);
  // The next that is another plan: auto repeats one of them.
  for (size_t i : BestFirst(reports)) {
    if (reports[i].plan == winner.plan) continue;
    const PlanReport& second = reports[i];
    if (second.prediction.seconds <= seconds) continue;
    const std::string longer =
        seconds > 0 ? fmt::format("{:.3g} %", 100 * (second.prediction.seconds / seconds - 1))
                    : Ms(second.prediction.seconds);
    return fmt::format("{}; the next, {}, takes {} longer: {}.", head, second.planner, longer,
                       LossOf(winner, second));
  }
  return head + ".";
}

}  // namespace equitile

#include "equitile/sparsity/balancer.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "equitile/plan/core/mask_hash.h"
#include "equitile/plan/planners/static_planner.h"

namespace equitile {
namespace {

bool Fits(const Plan& plan, const BlockMask& mask) {
  return plan.problem().lanes == mask.lanes() && plan.problem().grid == mask.grid();
}

}  // namespace

BalancerClock ClockOf(Communicator& comm) {
  return {.now = [&comm] { return comm.Now(); },
          .of_rank_0 =
              [&comm](double value) {
                comm.Broadcast(std::as_writable_bytes(std::span(&value, 1)), 0);
                return value;
              }};
}

Balancer::Balancer(BalancerOptions options, BalancerClock clock)
    : options_(std::move(options)), clock_(std::move(clock)) {}

// Of a rank with exactly its share of the work.
double Balancer::EvenSeconds(const Imbalance& imbalance) const {
  const PlanOptions& plan = options_.plan;
  const std::vector<double>& speeds = plan.cluster.speeds;
  const double shares = speeds.empty() ? static_cast<double>(plan.ranks)
                                       : std::accumulate(speeds.begin(), speeds.end(), 0.0);
  return static_cast<double>(imbalance.total) / static_cast<double>(plan.cost.block) *
         block_seconds_ / shares;
}

double Balancer::RhoOf(const Plan& plan, const BlockMask& mask) const {
  return Rescore(plan, mask, options_.plan.cost, options_.plan.cluster.speeds).rho;
}

void Balancer::TakeTwin(uint64_t hash, const BlockMask& mask, Layer& layer) const {
  for (const auto& [index, other] : layers_) {
    if (!other.plan_is_set || other.made_for != hash || !Fits(other.plan, mask)) continue;
    layer.plan = other.plan;
    layer.plan_is_set = true;
    layer.made_for = layer.last_mask = hash;
    layer.rho_made = layer.rho_now = other.rho_made;
    layer.planning_seconds = other.planning_seconds;
    return;
  }
}

bool Balancer::IsWorthKeeping(const BlockMask& mask, Layer& layer) {
  if (!layer.plan_is_set || !Fits(layer.plan, mask)) return false;
  const PlanOptions& plan = options_.plan;
  const Imbalance now = Rescore(layer.plan, mask, plan.cost, plan.cluster.speeds);
  layer.rho_now = now.rho;
  if (options_.rule.threshold > 0) return now.rho < options_.rule.threshold;
  layer.lost_seconds =
      std::max(0.0, layer.lost_seconds + (now.rho - layer.rho_made) * EvenSeconds(now));
  return layer.lost_seconds <= layer.planning_seconds;
}

void Balancer::MakeAnew(const BlockMask& mask, Layer& layer) {
  const double begin = clock_.now();
  RowCounts rows(mask);
  Plan plan = MakePlan(options_.planner, mask, rows, options_.plan).plan;
  const double rho = RhoOf(plan, mask);
  // A search may end above what it was to replace; then that is what is possible now.
  const bool worse = layer.plan_is_set && Fits(layer.plan, mask) && rho > layer.rho_now;
  if (!worse) {
    layer.plan = std::move(plan);
    layer.rho_now = rho;
  }
  layer.planning_seconds = clock_.of_rank_0(clock_.now() - begin);
  ++layer.made;
}

const Plan& Balancer::PlanFor(int32_t index, const BlockMask& mask) {
  const double begin = clock_.now();
  const uint64_t hash = HashMask(mask);
  Layer& layer = layers_[index];
  if (!layer.plan_is_set) TakeTwin(hash, mask, layer);
  block_seconds_ = options_.plan.cluster.BlockSeconds(mask.grid());
  const bool unchanged = layer.plan_is_set && layer.last_mask == hash && Fits(layer.plan, mask);
  const bool keep = unchanged || IsWorthKeeping(mask, layer);
  layer.rho_before += layer.plan_is_set && Fits(layer.plan, mask)
                          ? layer.rho_now
                          : RhoOf(PlanUlysses(ProblemFor(mask, options_.plan)), mask);
  if (keep) {
    ++layer.kept;
  } else {
    MakeAnew(mask, layer);
    layer.plan_is_set = true;
    layer.made_for = hash;
    layer.rho_made = layer.rho_now;
    layer.lost_seconds = 0;
  }
  layer.last_mask = hash;
  layer.rho_after += layer.rho_now;
  seconds_ += clock_.now() - begin;
  return layer.plan;
}

BalanceReport Balancer::Report() const {
  BalanceReport report;
  report.seconds = seconds_;
  double before = 0, after = 0;
  for (const auto& [index, layer] : layers_) {
    const double calls = static_cast<double>(layer.made + layer.kept);
    report.made += layer.made;
    report.kept += layer.kept;
    before += layer.rho_before;
    after += layer.rho_after;
    report.layers[index] = {.planner = layer.plan.planner().Text(),
                            .made = layer.made,
                            .kept = layer.kept,
                            .rho_before = layer.rho_before / calls,
                            .rho_after = layer.rho_after / calls};
  }
  const double calls = static_cast<double>(report.made + report.kept);
  if (calls > 0) {
    report.rho_before = before / calls;
    report.rho_after = after / calls;
  }
  return report;
}

}  // namespace equitile

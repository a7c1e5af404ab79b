#include "equitile/sparsity/balance/balancer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "equitile/plan/planners/static_planner.h"
#include "equitile/plan/predict/measure.h"

namespace equitile {
namespace {

constexpr double kPaperThreshold = 1.10;  // P_s of db-SP
// Predictions of layouts are right to about as much; less cannot tell them apart.
constexpr double kWorkShare = 0.10;
constexpr double kLookingShare = 0.05;

bool Fits(const Plan& plan, const LaneMasks& masks) {
  const Problem& problem = plan.problem();
  return problem.lanes == masks.blocks().lanes() && problem.grid == masks.blocks().grid() &&
         problem.orders == masks.orders() && problem.token_grid == masks.token_grid();
}

PlannerSpec PlannerOf(const Plan& plan, int32_t ranks) {
  return ParsePlanner(plan.planner().Text(), ranks);
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
    : options_(std::move(options)), clock_(std::move(clock)) {
  double& threshold = options_.rule.threshold;
  if (threshold == 0 && options_.planner.kind == PlannerKind::kDbspAuto)
    threshold = kPaperThreshold;
}

void Balancer::Begin(std::optional<PlanDecisions> repeats) {
  if (!options_.bits_depend_on_plans) return;
  layers_.clear();
  decisions_ = {};
  repeats_ = std::move(repeats);
}

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

bool Balancer::TakeTwin(const LaneMasks& masks, Layer& layer) const {
  for (const auto& [index, other] : layers_) {
    if (!other.plan_is_set || other.made_for != masks.hash() || !Fits(other.plan, masks)) continue;
    layer.plan = other.plan;
    layer.plan_is_set = true;
    layer.made_for = layer.last_masks = masks.hash();
    layer.rho_made = layer.rho_now = other.rho_made;
    layer.planning_seconds = other.planning_seconds;
    layer.comparing_seconds = other.comparing_seconds;
    layer.blocks_chosen = other.blocks_chosen;
    return true;
  }
  return false;
}

bool Balancer::IsWorthKeeping(const Imbalance& now, Layer& layer) const {
  if (options_.rule.threshold > 0) return now.rho < options_.rule.threshold;
  layer.lost_seconds =
      std::max(0.0, layer.lost_seconds + (now.rho - layer.rho_made) * EvenSeconds(now));
  return layer.lost_seconds <= layer.planning_seconds;
}

bool Balancer::OthersMayBeBetter(const BlockMask& mask, const Imbalance& now, Layer& layer) const {
  if (!Chooses(options_.planner.kind)) return false;
  layer.attention_seconds += EvenSeconds(now);
  const auto chosen = static_cast<double>(layer.blocks_chosen);
  if (std::abs(static_cast<double>(mask.Kept()) - chosen) <= kWorkShare * chosen) return false;
  return options_.rule.threshold > 0 ||
         layer.comparing_seconds <= kLookingShare * layer.attention_seconds;
}

void Balancer::Take(MadePlan made, const LaneMasks& masks, Layer& layer) {
  layer.plan = std::move(made.plan);
  layer.plan_is_set = true;
  layer.made_for = masks.hash();
  layer.rho_now =
      MeasureImbalance(layer.plan, *made.work, options_.plan.cost, options_.plan.cluster.speeds)
          .rho;
}

bool Balancer::MakeAnew(const LaneMasks& masks, const PlanDecision& told, Verdict why,
                        Layer& layer) {
  const double begin = clock_.now();
  const PlannerSpec planner = told                      ? *told
                              : why == Verdict::kReplan ? PlannerOf(layer.plan, options_.plan.ranks)
                                                        : options_.planner;
  RowCounts rows(masks.blocks());
  MadePlan made;
  double seconds = 0;  // predicted, where layouts are compared
  if (Chooses(planner.kind)) {
    Candidate best = BestCandidate(planner, masks, rows, options_.plan);
    made = std::move(best.made);
    seconds = best.seconds;
  } else {
    made = MakePlan(planner, masks, rows, options_.plan);
  }
  if (!made.work) made.work = CountStageWork(made.plan, masks.blocks(), rows.Blocks());
  // A search may end above what it was to replace; then that is what is possible now.
  bool is_better = true;
  if (!told && layer.plan_is_set && Fits(layer.plan, masks)) {
    MadePlan kept{.plan = layer.plan, .work = std::nullopt};
    is_better = Chooses(planner.kind)
                    ? seconds <= PredictedSeconds(planner, kept, masks, rows, options_.plan)
                    : MeasureImbalance(made.plan, *made.work, options_.plan.cost,
                                       options_.plan.cluster.speeds)
                              .rho <= layer.rho_now;
  }
  if (is_better) Take(std::move(made), masks, layer);
  layer.rho_made = layer.rho_now;
  layer.lost_seconds = 0;
  layer.planning_seconds = clock_.of_rank_0(clock_.now() - begin);
  if (why != Verdict::kReplan) {
    layer.blocks_chosen = masks.blocks().Kept();
    layer.attention_seconds = 0;
    layer.comparing_seconds = layer.planning_seconds;
  }
  ++layer.made;
  return is_better;
}

Balancer::Verdict Balancer::Judge(const BlockMask& mask, Layer& layer) const {
  const Imbalance now = Rescore(layer.plan, mask, options_.plan.cost, options_.plan.cluster.speeds);
  layer.rho_now = now.rho;
  const bool worth_keeping = IsWorthKeeping(now, layer);
  if (OthersMayBeBetter(mask, now, layer)) return Verdict::kCompare;
  if (worth_keeping) return Verdict::kKeep;
  // The paper's rule has no price: it looks at all layouts each time.
  return options_.rule.threshold > 0 ? Verdict::kCompare : Verdict::kReplan;
}

BalancedPlan Balancer::PlanFor(int32_t index, const LaneMasks& masks, bool whole_rows) {
  const double begin = clock_.now();
  const BlockMask& mask = masks.blocks();
  Layer& layer = layers_[index];
  const bool is_twin = !layer.plan_is_set && TakeTwin(masks, layer);
  block_seconds_ = options_.plan.cluster.BlockSeconds(mask.grid());
  const bool fits = layer.plan_is_set && Fits(layer.plan, masks);
  Verdict verdict = Verdict::kCompare;
  if (fits) verdict = layer.last_masks == masks.hash() ? Verdict::kKeep : Judge(mask, layer);
  bool keep = verdict == Verdict::kKeep;
  const int64_t call = decisions_.Calls(index);
  const bool is_told = repeats_ && call < repeats_->Calls(index);
  PlanDecision decision;
  if (is_told) {
    decision = repeats_->At(index, call);
    // The one that is told may be the one at hand: another layer had the same masks.
    keep = fits && (!decision || (layer.made_for == masks.hash() &&
                                  layer.plan.planner().Text() == decision->Text()));
  }
  BalancedPlan balanced;
  balanced.rho_before =
      fits ? layer.rho_now : RhoOf(PlanUlysses(ProblemFor(masks, options_.plan)), mask);
  layer.rho_before += balanced.rho_before;
  const bool is_new = keep ? is_twin : MakeAnew(masks, decision, verdict, layer);
  if (keep) ++layer.kept;
  if (is_new && !decision)
    decision = PlannerOf(layer.plan, options_.plan.ranks);
  if (options_.bits_depend_on_plans) decisions_.Add(index, decision);
  layer.last_masks = masks.hash();
  balanced.plan = &layer.plan;
  balanced.made = !keep;
  if (whole_rows && layer.plan.SplitsRows()) {
    whole_rows_ = MakePlan("fractional", masks, options_.plan);
    balanced.plan = &whole_rows_;
    balanced.made = true;
  }
  balanced.rho_after = balanced.plan == &layer.plan ? layer.rho_now : RhoOf(whole_rows_, mask);
  layer.rho_after += balanced.rho_after;
  seconds_ += clock_.now() - begin;
  return balanced;
}

BalanceReport Balancer::Report() const {
  BalanceReport report;
  report.seconds = seconds_;
  double before = 0, after = 0;
  for (const auto& [index, layer] : layers_) {
    if (layer.made + layer.kept == 0) continue;  // restored, and not called since
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

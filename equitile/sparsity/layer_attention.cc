#include "equitile/sparsity/layer_attention.h"

#include <utility>

#include "equitile/base/error.h"
#include "equitile/plan/predict/score.h"

namespace equitile {
namespace {

BalancerOptions Balancing(Executor& executor, LayerAttention::Options& options) {
  options.plan.ranks = executor.comm().size();
  options.plan.cluster.wire.head_dim = options.head_dim;
  SetNodes(executor.comm().NodeOf(), options.plan.cluster);
  return {.planner = ParsePlanner(options.planner, options.plan.ranks),
          .plan = options.plan,
          .rule = options.rule};
}

}  // namespace

LayerAttention::LayerAttention(Executor& executor, std::vector<BlockMask> masks, Options options)
    : executor_(executor),
      masks_(std::move(masks)),
      cost_(options.plan.cost),
      balancer_(Balancing(executor, options), ClockOf(executor.comm())),
      trace_(options.trace),
      layouts_(static_cast<size_t>(options.layers)),
      runs_(executor, options.head_dim,
            [this](int32_t layer, const BlockMask& mask) -> const Plan& {
              return PlanOf(layer, mask);
            }) {
  EQ_CHECK(masks_.size() == 1 || std::ssize(masks_) == options.layers, "{} masks for {} layers",
           masks_.size(), options.layers);
}

const Plan& LayerAttention::PlanOf(int32_t layer, const BlockMask& mask) {
  const double begin = executor_.comm().Now();
  const Plan& plan = balancer_.PlanFor(layer, mask);
  if (trace_ != nullptr) {
    trace_->Add(
        RunEvent{.kind = RunEvent::Kind::kPlan, .begin = begin, .end = executor_.comm().Now()},
        step_, layer);
  }
  LayerLayout& layout = layouts_[static_cast<size_t>(layer)];
  if (layout.planner.empty()) {  // masks do not change between steps
    layout = {.planner = plan.planner().Text(),
              .rho = Rescore(plan, mask, cost_).rho,
              .density = mask.Density()};
  }
  return plan;
}

void LayerAttention::operator()(const SelfAttentionCall& call) {
  const auto layer = static_cast<size_t>(call.layer);
  if (call.layer == 0) ++step_;
  runs_.Run(masks_[masks_.size() == 1 ? 0 : layer], {.step = step_,
                                                     .layer = call.layer,
                                                     .scale = call.scale,
                                                     .q = call.q,
                                                     .k = call.k,
                                                     .v = call.v,
                                                     .out = call.out,
                                                     .lse = nullptr});
  if (trace_ != nullptr) trace_->Add(executor_.LastRun(), step_, call.layer);
}

}  // namespace equitile

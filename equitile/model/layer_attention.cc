#include "equitile/model/layer_attention.h"

#include <utility>

#include "equitile/base/error.h"
#include "equitile/plan/score.h"

namespace equitile {
namespace {

PlanFor Planner(Executor& executor, LayerAttention::Options& options) {
  options.plan.ranks = executor.comm().size();
  options.plan.cluster.wire.head_dim = options.head_dim;
  return PlanWith(ParsePlanner(options.planner, options.plan.ranks), options.plan);
}

}  // namespace

LayerAttention::LayerAttention(Executor& executor, std::vector<BlockMask> masks, Options options)
    : masks_(std::move(masks)),
      cost_(options.plan.cost),
      plan_for_(Planner(executor, options)),
      layouts_(static_cast<size_t>(options.layers)),
      runs_(executor, options.head_dim,
            [this](int32_t layer, const BlockMask& mask) -> const Plan& {
              return PlanOf(layer, mask);
            }) {
  EQ_CHECK(masks_.size() == 1 || std::ssize(masks_) == options.layers, "{} masks for {} layers",
           masks_.size(), options.layers);
}

const Plan& LayerAttention::PlanOf(int32_t layer, const BlockMask& mask) {
  const Plan& plan = plan_for_(layer, mask);
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
  runs_.Run(masks_[masks_.size() == 1 ? 0 : layer], {.step = -1,
                                                     .layer = call.layer,
                                                     .scale = call.scale,
                                                     .q = call.q,
                                                     .k = call.k,
                                                     .v = call.v,
                                                     .out = call.out,
                                                     .lse = nullptr});
}

}  // namespace equitile

// Which plan a layer runs now: the last one as long as it pays, else a new one. Selection at run
// time, between the mask that a layer has just got and the executor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "equitile/comm/communicator.h"
#include "equitile/pattern/lane_masks.h"
#include "equitile/plan/planners/planner.h"
#include "equitile/plan/predict/score.h"
#include "equitile/sparsity/balance/plan_decisions.h"
#include "equitile/sparsity/source/source_state.h"

namespace equitile {

// When to plan anew.
struct ReplanRule {
  // Whenever the kept plan's ratio has reached this; 0: the planner's own rule, which is 1.10 for
  // dbsp:auto, as in the paper, and for all others that the time lost since the last plan exceeds
  // the price of another (see Balancer).
  double threshold = 0;
};

struct BalancerOptions {
  PlannerSpec planner;  // auto: all candidates, the cheapest by the cost model
  PlanOptions plan;
  ReplanRule rule;
  // Bits depend on who computes what: each video begins without plans, what was decided is written
  // down, and State holds what a checkpoint needs.
  bool bits_depend_on_plans = false;
};

// Time as a Balancer sees it. Decisions use only what rank 0 has measured, so all ranks decide
// alike.
struct BalancerClock {
  std::function<double()> now;              // seconds
  std::function<double(double)> of_rank_0;  // collective: rank 0's value for everybody
};
BalancerClock ClockOf(Communicator& comm);  // which must outlive it

// Of one layer; ratios are means over its masks.
struct LayerBalance {
  std::string planner;  // of the plan it has now
  int64_t made = 0, kept = 0;
  double rho_before = 0;  // of the plan at hand when the mask came; at first plain Ulysses
  double rho_after = 0;   // of the plan that was run
};

struct BalanceReport {
  int64_t made = 0, kept = 0;
  double seconds = 0;  // scoring and planning, this rank's
  double rho_before = 1, rho_after = 1;
  std::map<int32_t, LayerBalance> layers;
};

// The plan of one call.
struct BalancedPlan {
  const Plan* plan = nullptr;            // valid until the layer's next call
  bool made = false;                     // anew
  double rho_before = 1, rho_after = 1;  // as in LayerBalance
};

// A new plan is worth its price when it saves more time than planning takes. What it will save is
// not known before it is made; what it would have saved since the last one was made is:
//   sum over the masks since then of (rho_kept - rho_made) x attention seconds > planning seconds,
// with rho_made what the planner reached last time, attention seconds those of an even share by the
// cost model, and planning seconds as measured on rank 0. For a mask that changes at once that is
// the plain rule (the first term alone exceeds the price); under a slow drift it re-plans when the
// losses have reached the price, which is the best period for a loss that grows evenly
// (test Balancer.WithinOnePercentOfTheBestHabit). With a threshold: whenever rho_kept reaches it.
//
// Planners that choose between layouts compare them again, too, when the work has changed by more
// than a tenth since they last did: rho says nothing about an exchange that less work no longer
// hides. By the first rule only as far as such looking takes at most a twentieth of the attention;
// a plan that has only become uneven is made anew in its own layout.
class Balancer {
 public:
  Balancer(BalancerOptions options, BalancerClock clock);

  // Another video. Plans stay, unless bits depend on them. `repeats`: what a run of the same video
  // decided, for those calls of which it is known; beyond them as ever.
  void Begin(std::optional<PlanDecisions> repeats = std::nullopt);

  // Collective, and the same on all ranks for the same masks. whole_rows: in a layout that splits
  // no row, for this call alone where the layer's own does.
  BalancedPlan PlanFor(int32_t layer, const LaneMasks& masks, bool whole_rows = false);

  BalanceReport Report() const;

  // Of the video so far; nothing where bits do not depend on plans.
  const PlanDecisions& decisions() const { return decisions_; }
  SourceState State() const;
  void Restore(const SourceState& state);  // throws InputError where it is another run's

 private:
  struct Layer {
    Plan plan;
    bool plan_is_set = false;
    uint64_t made_for = 0, last_masks = 0;  // hashes
    double rho_made = 1;                    // when the plan was made
    double rho_now = 1;                     // for the last mask
    double lost_seconds = 0;                // since the plan was made
    int64_t blocks_chosen = 0;     // kept, of the mask for which layouts were last compared
    double attention_seconds = 0;  // of even shares since then
    double planning_seconds = 0;   // rank 0's, of the last plan made
    double comparing_seconds = 0;  // rank 0's, of the last one for which layouts were compared
    int64_t made = 0, kept = 0;
    double rho_before = 0, rho_after = 0;  // sums
  };

  // Another layer's plan for the same mask, if there is one.
  bool TakeTwin(const LaneMasks& masks, Layer& layer) const;
  bool IsWorthKeeping(const Imbalance& now, Layer& layer) const;
  bool OthersMayBeBetter(const BlockMask& mask, const Imbalance& now, Layer& layer) const;
  // What becomes of a plan that fits a new mask.
  enum class Verdict : uint8_t {
    kKeep,
    kReplan,   // it has become uneven; the layout may stay
    kCompare,  // another layout may be better
  };
  Verdict Judge(const BlockMask& mask, Layer& layer) const;
  // By the planner that is told, or by ours; with a comparison the best that it may choose, the
  // kept plan included. False: that is best.
  bool MakeAnew(const LaneMasks& masks, const PlanDecision& told, Verdict why, Layer& layer);
  void Take(MadePlan made, const LaneMasks& masks, Layer& layer);
  double RhoOf(const Plan& plan, const BlockMask& mask) const;
  double EvenSeconds(const Imbalance& imbalance) const;

  BalancerOptions options_;
  BalancerClock clock_;
  std::map<int32_t, Layer> layers_;
  PlanDecisions decisions_;
  std::optional<PlanDecisions> repeats_;
  Plan whole_rows_;           // of the last call that asked for it
  double block_seconds_ = 0;  // of the present mask
  double seconds_ = 0;
};

}  // namespace equitile

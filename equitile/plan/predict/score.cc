#include "equitile/plan/predict/score.h"

namespace equitile {

Score ScorePlan(const Plan& plan, const LaneMasks& masks, RowCounts& rows, const CostModel& model,
                const Cluster& cluster, std::optional<StageWork> work) {
  CheckCluster(cluster, plan.ranks());
  Score score;
  score.work = work ? std::move(*work) : CountStageWork(plan, masks.blocks(), rows.Blocks());
  score.imbalance = MeasureImbalance(plan, score.work, model, cluster.speeds);
  score.moved = CountMoved(plan);
  const HomeMap homes(plan.problem());
  score.traffic = CountTraffic(plan, homes, masks.blocks(), cluster.wire);
  AddMeansTraffic(plan, homes, masks, cluster.wire, score.traffic);
  return score;
}

Imbalance Rescore(const Plan& plan, const BlockMask& mask, const CostModel& model,
                  std::span<const double> speeds) {
  return MeasureImbalance(plan, CountStageWork(plan, mask, RowBlocks(mask)), model, speeds);
}

}  // namespace equitile

#include "equitile/plan/predict/score.h"

namespace equitile {

Score ScorePlan(const Plan& plan, const BlockMask& mask, RowCounts& rows, const CostModel& model,
                const Cluster& cluster, std::optional<StageWork> work) {
  CheckCluster(cluster, plan.ranks());
  Score score;
  score.work = work ? std::move(*work) : CountStageWork(plan, mask, rows.Blocks());
  score.imbalance = MeasureImbalance(plan, score.work, model, cluster.speeds);
  score.moved = CountMoved(plan);
  score.traffic = CountTraffic(plan, HomeMap(plan.problem()), mask, cluster.wire);
  return score;
}

Imbalance Rescore(const Plan& plan, const BlockMask& mask, const CostModel& model,
                  std::span<const double> speeds) {
  return MeasureImbalance(plan, CountStageWork(plan, mask, RowBlocks(mask)), model, speeds);
}

}  // namespace equitile

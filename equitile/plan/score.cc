#include "equitile/plan/score.h"

namespace equitile {

Score ScorePlan(const Plan& plan, const BlockMask& mask, std::span<const int32_t> row_blocks,
                const CostModel& model, const Cluster& cluster) {
  CheckCluster(cluster, plan.ranks());
  Score score;
  score.work = CountStageWork(plan, mask, row_blocks);
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

#include "equitile/search/choice/speed_model.h"

#include <vector>

#include "equitile/base/error.h"
#include "equitile/generate/time_estimate.h"

namespace equitile {

SpeedModel::SpeedModel(const Machine& machine, const SpeedPlace& place) : place_(place) {
  const BlockGrid grid = {.q_tokens = place.grid.Tokens(),
                          .kv_tokens = place.grid.Tokens(),
                          .block_tokens = place.block_tokens};
  plan_.ranks = place.ranks;
  plan_.cluster.wire.head_dim = place.model.head_dim;
  ApplyMachine(machine, grid, plan_);
  block_seconds_ = plan_.cluster.BlockSeconds(grid);
  row_seconds_ = plan_.cluster.row_seconds;
  pack_seconds_ = plan_.cluster.pack_seconds_per_byte * 3 * sizeof(float) *
                  static_cast<double>(grid.q_tokens * place.model.head_dim);
  rows_ = static_cast<double>(grid.QBlocks());
  blocks_ = rows_ * static_cast<double>(grid.KvBlocks());
  ComputeRates rates =
      RatesOf(machine, place.model.head_dim, {}, static_cast<int>(machine.threads));
  if (!(rates.peak_gflops > 0)) rates.peak_gflops = rates.attention_gflops;  // not in the file
  rest_seconds_ = EstimateStepSeconds(place.model,
                                      {.tokens = grid.q_tokens,
                                       .text_rows = place.text_rows,
                                       .passes = place.passes,
                                       .density = 0,
                                       .rho = 1},
                                      rates, place.ranks);
  dense_layer_seconds_ =
      LayerSeconds(std::vector<HeadPattern>(static_cast<size_t>(place.model.heads)));
}

double SpeedModel::HeadSeconds(double density, Tail tail) const {
  const double kept = density * blocks_;
  const double means =
      tail == Tail::kMean ? (blocks_ - kept) / static_cast<double>(place_.block_tokens) : 0.0;
  if (kept + means <= 0) return 0;
  return (kept + means) * block_seconds_ + rows_ * row_seconds_ + pack_seconds_;
}

double SpeedModel::LayerSeconds(std::span<const HeadPattern> heads) const {
  if (place_.ranks > 1) {
    const LaneMasks masks =
        MakePatternMasks(heads, place_.passes, place_.grid, place_.block_tokens);
    RowCounts rows(masks.blocks());
    return BestCandidate({.kind = PlannerKind::kAuto}, masks, rows, plan_).seconds;
  }
  double seconds = 0;
  for (const HeadPattern& head : heads) {
    const Tail tail = head.mode == HeadMode::kMean ? Tail::kMean : Tail::kNone;
    seconds += HeadSeconds(PatternDensity(head, place_.grid, place_.block_tokens), tail);
  }
  return static_cast<double>(place_.passes) * seconds;
}

double SpeedModel::DenseStepSeconds() const {
  return rest_seconds_ + static_cast<double>(place_.model.layers) * dense_layer_seconds_;
}

double SpeedModel::Speedup(int64_t dense_steps, int64_t sparse_steps, double sparse_seconds) const {
  const double dense = DenseStepSeconds() * static_cast<double>(dense_steps + sparse_steps);
  return dense / (DenseStepSeconds() * static_cast<double>(dense_steps) +
                  rest_seconds_ * static_cast<double>(sparse_steps) + sparse_seconds);
}

double SpeedModel::SecondsFor(double speedup, int64_t dense_steps, int64_t sparse_steps) const {
  const double dense = DenseStepSeconds() * static_cast<double>(dense_steps + sparse_steps);
  return dense / speedup - DenseStepSeconds() * static_cast<double>(dense_steps) -
         rest_seconds_ * static_cast<double>(sparse_steps);
}

}  // namespace equitile

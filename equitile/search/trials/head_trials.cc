#include "equitile/search/trials/head_trials.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "equitile/base/error.h"
#include "equitile/kernel/rows/pooling.h"
#include "equitile/sparsity/mass/mass_rule.h"
#include "equitile/sparsity/published/static_masks.h"

namespace equitile {
namespace {

// Share of blocks that `predict` by mass keeps in any case: its default.
constexpr double kPredictMin = 0.05;

BlockGrid GridOf(const LaneInputs& inputs, int64_t block_tokens) {
  return {.q_tokens = inputs.tokens, .kv_tokens = inputs.tokens, .block_tokens = block_tokens};
}

// Means of the strips of one lane in home order.
std::vector<float> StripMeansOf(const LaneInputs& inputs, std::span<const float> rows,
                                size_t lane) {
  const int64_t strips = CeilDiv(inputs.tokens, kStripTokens), dim = inputs.head_dim;
  std::vector<float> means(static_cast<size_t>(strips * dim));
  std::vector<double> sums(static_cast<size_t>(dim));
  const float* from = rows.data() + static_cast<int64_t>(lane) * inputs.tokens * dim;
  for (int64_t strip = 0; strip < strips; ++strip) {
    std::fill(sums.begin(), sums.end(), 0.0);
    const int64_t count = std::min(kStripTokens, inputs.tokens - strip * kStripTokens);
    if (!AddToPool(from + strip * kStripTokens * dim, count, dim, dim, sums.data())) {
      throw InputError("[search] a query or key is beyond {} or not a number", kPoolLimit);
    }
    for (int64_t i = 0; i < dim; ++i) {
      means[static_cast<size_t>(strip * dim + i)] =
          static_cast<float>(sums[static_cast<size_t>(i)] / static_cast<double>(count));
    }
  }
  return means;
}

// [kv blocks] of kWholeMass, as observe rounds them.
void RoundMasses(std::span<const float> shares, std::span<uint32_t> masses) {
  for (size_t j = 0; j < masses.size(); ++j) {
    const double share = static_cast<double>(shares[j]) * kWholeMass;
    masses[j] =
        share >= 0 && share <= 2.0 * kWholeMass ? static_cast<uint32_t>(std::lround(share)) : 0;
  }
}

}  // namespace

int64_t HeadTrials::LaneBytes(int64_t tokens, int64_t head_dim) {
  return PackedLanes::LaneBytes(tokens, head_dim) + ChainTrial::LaneBytes(tokens, head_dim);
}

std::vector<HeadTrials::Chain> HeadTrials::Chains() const {
  std::vector<Chain> chains;
  const std::vector<HeadOption>& options = place_.options;
  for (size_t i = 0; i < options.size(); ++i) {
    if (options[i].IsFull()) continue;
    const bool goes_on =
        i > 0 && options[i].kind == options[i - 1].kind && options[i].mode == options[i - 1].mode;
    if (goes_on) {
      chains.back().end = i + 1;
    } else {
      chains.push_back({i, i + 1});
    }
  }
  return chains;
}

TokenOrder HeadTrials::OrderOf(const Chain& chain) const {
  const HeadOption& option = place_.options[chain.begin];
  if (option.kind == OptionKind::kWindow) {
    const SlidingTileOptions tiles;
    return TokenOrder::Tiles(tiles.tile[0], tiles.tile[1], tiles.tile[2]);
  }
  if (option.kind != OptionKind::kMode) return place_.grid.home;
  if (option.mode == HeadMode::kDiagonal) return TokenOrder::kFHW;
  return option.mode == HeadMode::kMultiDiagonal ? TokenOrder::kHWF : place_.grid.home;
}

LaneMasks HeadTrials::RuleMask(const HeadOption& option,
                               std::span<const uint64_t> column_masses) const {
  if (option.kind == OptionKind::kWindow) {
    SlidingTileOptions tiles;
    tiles.window = option.window;
    return SlidingTileMasks(
        {.lanes = {1, 1}, .grid = place_.grid, .block_tokens = place_.block_tokens}, tiles);
  }
  const HeadPattern pattern = PatternOf(option, column_masses, place_.grid, place_.block_tokens);
  return MakePatternMasks({&pattern, 1}, 1, place_.grid, place_.block_tokens);
}

std::vector<BlockMask> HeadTrials::RuleMasks(
    const Chain& chain, const LaneInputs& inputs,
    std::span<const std::vector<uint64_t>> column_masses) const {
  const Lanes lanes = {.batch = std::ssize(inputs.lanes), .heads = 1};
  std::vector<BlockMask> masks;
  for (size_t i = chain.begin; i < chain.end; ++i) {
    BlockMask& mask = masks.emplace_back(lanes, GridOf(inputs, place_.block_tokens));
    for (int64_t lane = 0; lane < lanes.Count(); ++lane) {
      const int64_t head = inputs.lanes[static_cast<size_t>(lane)] % place_.heads;
      const LaneMasks one = RuleMask(place_.options[i], column_masses[static_cast<size_t>(head)]);
      for (int64_t q = 0; q < mask.QBlocks(); ++q)
        std::ranges::copy(one.blocks().Row(0, q), mask.MutableRow(lane, q).begin());
    }
  }
  return masks;
}

std::vector<BlockMask> HeadTrials::MasksOf(const Chain& chain, const LaneInputs& inputs,
                                           std::span<const std::vector<uint64_t>> column_masses,
                                           std::span<const int64_t> rows,
                                           const ChainTrial& trial) const {
  const OptionKind kind = place_.options[chain.begin].kind;
  if (kind == OptionKind::kMode || kind == OptionKind::kWindow)
    return RuleMasks(chain, inputs, column_masses);
  const Lanes lanes = {.batch = std::ssize(inputs.lanes), .heads = 1};
  const BlockGrid grid = GridOf(inputs, place_.block_tokens);
  std::vector<BlockMask> masks(chain.end - chain.begin, BlockMask(lanes, grid));
  const auto kv_blocks = static_cast<size_t>(grid.KvBlocks());
  // Lanes write rows of their own.
  pool_.ParallelFor(lanes.Count(), [&](int64_t lane, int) {
    const auto l = static_cast<size_t>(lane);
    std::vector<uint32_t> masses(kv_blocks);
    std::vector<float> q, k, scratch;
    std::optional<MassPredictor> predictor;
    if (kind == OptionKind::kPredict) {
      q = StripMeansOf(inputs, inputs.q, l);
      k = StripMeansOf(inputs, inputs.k, l);
      predictor.emplace(StripMeans{grid, inputs.head_dim, q.data(), k.data()}, inputs.scale);
      scratch.resize(static_cast<size_t>(predictor->ScratchFloats()));
    }
    for (size_t row = 0; row < rows.size(); ++row) {
      if (predictor) {
        predictor->PredictRow(rows[row], scratch.data(), masses.data());
      } else {
        RoundMasses(trial.masses().subspan((l * rows.size() + row) * kv_blocks, kv_blocks), masses);
      }
      for (size_t i = 0; i < masks.size(); ++i) {
        const MassRule rule = {.mass = place_.options[chain.begin + i].size,
                               .min = predictor ? kPredictMin : 0.0};
        KeepByMass(masses, rule, lane, rows[row], masks[i]);
      }
    }
  });
  return masks;
}

void HeadTrials::TryIn(TokenOrder order, const LaneInputs& inputs,
                       std::span<const std::vector<uint64_t>> column_masses,
                       std::span<const int64_t> rows, std::vector<LaneTrials>& trials) {
  PackedLanes lanes(inputs, place_.grid, place_.block_tokens, order, pool_, workspace_);
  ChainTrial trial(lanes, rows, pool_);
  trial.RunDense();
  if (order == place_.grid.home) {
    for (size_t lane = 0; lane < trials.size(); ++lane)
      trials[lane].mean_square = trial.MeanSquare(static_cast<int64_t>(lane));
  }
  for (const Chain& chain : Chains()) {
    if (OrderOf(chain) != order) continue;
    const HeadOption& first = place_.options[chain.begin];
    const bool has_tail = first.kind == OptionKind::kObserve ||
                          first.kind == OptionKind::kPredict || first.mode == HeadMode::kMean;
    const auto errors = trial.Run(MasksOf(chain, inputs, column_masses, rows, trial),
                                  has_tail ? Tail::kMean : Tail::kNone);
    for (size_t i = 0; i < errors.size(); ++i) {
      for (size_t lane = 0; lane < trials.size(); ++lane)
        trials[lane].options[chain.begin + i] = errors[i][lane];
    }
  }
}

std::vector<LaneTrials> HeadTrials::Try(const LaneInputs& inputs,
                                        std::span<const std::vector<uint64_t>> column_masses,
                                        std::span<const int64_t> rows) {
  std::vector<LaneTrials> trials(inputs.lanes.size());
  if (trials.empty()) return trials;
  for (LaneTrials& lane : trials) lane.options.resize(place_.options.size());
  std::vector<TokenOrder> orders = {place_.grid.home};
  for (const Chain& chain : Chains()) {
    if (std::ranges::find(orders, OrderOf(chain)) == orders.end()) orders.push_back(OrderOf(chain));
  }
  for (TokenOrder order : orders) TryIn(order, inputs, column_masses, rows, trials);
  return trials;
}

}  // namespace equitile

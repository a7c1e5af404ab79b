// Masks by what leaving a block out does to the output: one budget of error for all lanes of a
// layer, spent where it saves most blocks, each lane in the order that needs the fewest. From the
// step's own queries, keys and values; no dense step is needed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "equitile/sparsity/block_errors.h"
#include "equitile/sparsity/lane_rows.h"
#include "equitile/sparsity/layer_budget.h"
#include "equitile/sparsity/mask_source.h"
#include "equitile/sparsity/masks_in_force.h"
#include "equitile/sparsity/source_context.h"

namespace equitile {

struct ErrorOptions {
  // What may be lost in a layer: square root of the summed squares of what each block that is left
  // out moves the outputs by, over that of the outputs. 0: nothing, all blocks are kept.
  double error = 0.01;
  int64_t sampled_rows = 4;        // of each block of queries
  std::vector<TokenOrder> orders;  // that a lane may take; the first where they are equal
  int64_t first_step = 0;          // counted from 0; dense before it
  std::optional<int64_t> refresh;  // computed steps; nothing: masks are made once
  bool share_passes = false;       // the conditional pass's masks for all passes
};

class ErrorMasks final : public MaskSource {
 public:
  // shape: lanes, grid and tails of the masks; the same tail in every lane.
  ErrorMasks(const SourceContext& context, LaneMasks shape, ErrorOptions options);

  LaneMasks MaskFor(const SelfAttentionCall& call) override;
  int64_t Bytes() const override { return masks_.Bytes() + budget_.Bytes(); }
  SourceState State() const override { return masks_.State(); }
  void Restore(const SourceState& state) override { masks_.Restore(state); }

 private:
  struct Order {
    TokenOrder order;
    std::vector<int32_t> token_at_position;
    // Of the sampled queries: tokens in the order of positions, the same ascending, and where each
    // of the former stands among the latter.
    std::vector<int64_t> tokens, ascending, place;
  };
  // Of a lane in the order that needs the fewest blocks.
  struct Judged {
    int64_t lane = 0, order = 0;
    BlockErrors errors;
  };

  Order MakeOrder(TokenOrder order) const;
  LaneMasks Make(const SelfAttentionCall& call);
  std::vector<Judged> JudgeOwnLanes(const SelfAttentionCall& call, int64_t lanes);
  // One lane's rows, on the rank that makes its mask.
  struct Rows {
    int64_t lane = -1;
    std::vector<size_t> orders;               // that are judged
    std::vector<std::vector<float>> queries;  // of each of them, tokens ascending
    std::vector<float> k, v;
  };
  Rows Gather(const SelfAttentionCall& call, int64_t lane) const;
  // All of them the first time; then the one that the lane has taken.
  std::vector<size_t> OrdersToJudge(int32_t layer, int64_t lane) const;
  Judged Judge(const SelfAttentionCall& call, const Rows& rows);
  void Keep(std::span<const Judged> judged, double squares, int64_t lanes, BlockMask& mask);
  bool MakesMaskOf(int64_t lane) const;

  SourceContext context_;
  ErrorOptions options_;
  LaneMasks dense_;
  MasksInForce masks_;
  LaneRows rows_;
  LayerBudget budget_;
  BlockPartials partials_;
  std::vector<Order> orders_;
};

}  // namespace equitile

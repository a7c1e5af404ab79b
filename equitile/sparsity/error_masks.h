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
  int64_t Bytes() const override;
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
    int64_t lane = 0;
    size_t order = 0;
    std::vector<float> errors;  // [q blocks][kv blocks]
    double squares = 0;
  };
  // One lane's rows, on the rank that makes its mask. Its memory serves all lanes.
  struct Rows {
    struct Candidate {
      size_t order = 0;
      std::vector<float> queries;  // tokens ascending
      BlockErrors errors;
    };
    int64_t lane = -1;
    std::vector<float> k, v;
    std::vector<Candidate> candidates;  // the first `orders` of them are judged
    size_t orders = 0;
  };

  Order MakeOrder(TokenOrder order) const;
  LaneMasks Make(const SelfAttentionCall& call);
  std::vector<Judged> JudgeOwnLanes(const SelfAttentionCall& call, int64_t lanes);
  // Lanes of each rank that are judged together.
  int64_t LanesAtOnce() const;
  // How many of a block's keys a query is spared (BlockErrors::Lane).
  int64_t KeyStep() const;
  int64_t ValueDims() const;
  void Gather(const SelfAttentionCall& call, int64_t lane, Rows& rows) const;
  // All of them the first time; then the one that the lane has taken.
  std::vector<size_t> OrdersToJudge(int32_t layer, int64_t lane) const;
  void Judge(const SelfAttentionCall& call, std::span<Rows> lanes, std::vector<Judged>& judged);
  BlockErrors::Lane LaneOf(const Rows& rows, const Rows::Candidate& candidate, float scale) const;
  // Which of the candidates, by the rows of blocks that are judged for the choice.
  size_t FewestBlocks(const Rows& rows) const;
  void Keep(std::span<const Judged> judged, double squares, int64_t lanes, BlockMask& mask);
  bool MakesMaskOf(int64_t lane) const;

  SourceContext context_;
  ErrorOptions options_;
  LaneMasks dense_;
  MasksInForce masks_;
  LaneRows rows_;
  LayerBudget budget_;
  BlockJudge judge_;
  std::vector<Order> orders_;
  // Rows of blocks by which orders are chosen, all others, and all.
  std::vector<int64_t> choosing_, others_, all_;
  std::vector<Rows> lanes_;  // that are judged together
  Rows sent_;                // of lanes whose masks other ranks make
};

}  // namespace equitile

// One layer's masks by what leaving a block out does to the output: one budget of error for all
// lanes, spent where it saves most blocks, each lane in the order that needs the fewest. Apart from
// the source that keeps masks, since its memory serves all layers and noise levels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/sparsity/error/block_errors.h"
#include "equitile/sparsity/mass/layer_budget.h"
#include "equitile/sparsity/source/lane_rows.h"
#include "equitile/sparsity/source/mask_source.h"
#include "equitile/sparsity/source/source_context.h"

namespace equitile {

class ErrorMaskMaker {
 public:
  struct Options {
    int64_t sampled_rows = 4;  // of each block of queries
    // That a lane may take; the first where they are equal. Empty: the home's, fhw, hwf.
    std::vector<TokenOrder> orders;
    bool share_passes = false;  // the conditional pass's masks for all passes
  };
  struct Wish {
    double error = 0;                    // see ErrorOptions; above 0
    const LaneMasks& shape;              // its tails
    const LaneMasks* before = nullptr;   // the layer's last masks, whose orders stay; null: none
    std::span<const int64_t> skipped{};  // heads, ascending, that have nothing and get nothing
  };

  ErrorMaskMaker(const SourceContext& context, Options options);

  // Collective.
  LaneMasks Make(const SelfAttentionCall& call, const Wish& wish);

  int64_t Bytes() const;

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
    };
    int64_t lane = -1;
    std::vector<float> k, v;
    std::vector<Candidate> candidates;  // the first `orders` of them are judged
    size_t orders = 0;
  };
  // What judging a lane takes and gives.
  struct Task {
    const Rows& rows;
    std::vector<BlockErrors>& errors;  // by candidate
    Judged& judged;
  };

  Order MakeOrder(TokenOrder order) const;
  size_t PlaceOf(TokenOrder order);  // in orders_, which it joins
  TokenOrder OrderIn(const LaneMasks& masks, int64_t lane) const;
  std::vector<Judged> JudgeOwnLanes(const SelfAttentionCall& call, const Wish& wish,
                                    std::span<const int64_t> lanes);
  // How many of a block's keys a query is spared (BlockErrors::Lane).
  int64_t KeyStep() const;
  int64_t ValueDims() const;
  void Gather(const SelfAttentionCall& call, const Wish& wish, const LaneMaker& lane, Rows& rows);
  // The one that the lane has; where it has none, all of the choice.
  std::vector<size_t> OrdersToJudge(const Wish& wish, int64_t lane);
  // thread: who calls, or all of them (BlockJudge).
  void Judge(const SelfAttentionCall& call, const Wish& wish, std::span<const Task> lanes,
             int thread);
  void JudgeCandidates(std::span<BlockErrors* const> candidates, bool choose, int thread);
  BlockErrors::Lane LaneOf(const Rows& rows, const Rows::Candidate& candidate, float scale,
                           Tail tail) const;
  // Which of the candidates, by the rows of blocks that are judged for the choice.
  size_t FewestBlocks(std::span<const BlockErrors> candidates, double error) const;
  void Keep(std::span<const Judged> judged, const Wish& wish, double squares, int64_t lanes,
            BlockMask& mask);

  SourceContext context_;
  Options options_;
  LaneRows rows_;
  LayerBudget budget_;
  BlockJudge judge_;
  std::vector<Order> orders_;  // those of the choice, then others that lanes have
  // Rows of blocks by which orders are chosen, all others, and all.
  std::vector<int64_t> choosing_, others_, all_;
  std::vector<std::vector<Rows>> lanes_;          // [slots of rows_] that are judged together
  Rows sent_;                                     // of lanes whose masks other ranks make
  std::vector<std::vector<BlockErrors>> errors_;  // of lanes that are judged together
};

}  // namespace equitile

// Where every head's attention lies, block by block, in each of the six orders of its axes: what
// masks that are calibrated once are made from (PAROAttention, arXiv 2506.16054).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/search/trials/lane_gather.h"
#include "equitile/sparsity/source/mask_source.h"
#include "equitile/sparsity/source/source_context.h"

namespace equitile {

// [layers][heads][orders][q blocks * kv blocks], orders as in kAxisOrders, in integers: a row of
// one call adds up to about kWholeMass.
class OrderMasses {
 public:
  OrderMasses(int64_t layers, int64_t heads, const BlockGrid& grid);

  std::span<uint64_t> Of(int64_t layer, int64_t head, size_t order);
  std::span<const uint64_t> Of(int64_t layer, int64_t head, size_t order) const;
  std::span<uint64_t> Layer(int64_t layer);  // [heads][orders][blocks]

  const BlockGrid& grid() const { return grid_; }
  static int64_t Bytes(int64_t layers, int64_t heads, const BlockGrid& grid);
  void AddTo(SourceState& parts) const;
  void Restore(const SourceState& parts);  // throws InputError for another search's

 private:
  int64_t heads_;
  BlockGrid grid_;
  std::vector<uint64_t> sums_;
};

// Every so many steps after the dense ones are looked at: masks for all steps need no more, and six
// orders of every row take long.
inline constexpr int64_t kOrderMassesEvery = 4;

// Dense, and adds what it sees, of all passes: the same on every rank.
class OrderMassSource final : public MaskSource {
 public:
  // sums must outlive it.
  OrderMassSource(const SourceContext& context, int64_t dense_steps, OrderMasses& sums);
  LaneMasks MaskFor(const SelfAttentionCall& call) override;

 private:
  void Add(const LaneInputs& inputs, std::span<uint64_t> seen);

  SourceContext context_;
  int64_t dense_steps_;
  LaneMasks dense_;
  LaneGather gather_;
  Workspace workspace_;
  OrderMasses& sums_;
};

// Of one layer, for one pass: every head in the order in which so many of its blocks hold the most,
// of equal ones the first; the heaviest blocks of the head, and of every row at least its heaviest.
LaneMasks MasksByOrder(const OrderMasses& sums, int64_t layer, int64_t heads, const TokenGrid& grid,
                       double density);

}  // namespace equitile

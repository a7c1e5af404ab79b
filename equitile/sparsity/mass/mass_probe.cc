#include "equitile/sparsity/mass/mass_probe.h"

#include <algorithm>
#include <cstring>

#include "equitile/base/error.h"
#include "equitile/exec/home_rows.h"
#include "equitile/plan/planners/planner.h"

namespace equitile {

LaneMasks AllBlocksLike(const LaneMasks& masks) {
  const BlockMask& blocks = masks.blocks();
  return LaneMasks({.blocks = BlockMask::Dense(blocks.lanes(), blocks.grid()),
                    .token_grid = masks.token_grid(),
                    .orders = masks.orders(),
                    .tails = {}});
}

std::vector<RowMasses> MassProbe::Run(const SelfAttentionCall& call, const LaneMasks& masks) {
  EQ_CHECK(masks.tails().empty(), "masses of masks with tails");
  if (!plan_is_set_ || planned_for_ != masks.hash()) {
    PlanOptions options;
    options.ranks = executor_.comm().size();
    options.cluster.wire.head_dim = head_dim_;
    plan_ = MakePlan("fractional", masks, options);
    planned_for_ = masks.hash();
    plan_is_set_ = true;
  }
  const Problem& problem = plan_.problem();
  const HomeRows home(HomeMap(problem), problem.lanes, executor_.comm().rank());
  unused_.resize(static_cast<size_t>(home.Count() * problem.lanes.heads * head_dim_));
  std::vector<RowMasses> rows;
  executor_.Run(plan_, masks, head_dim_,
                {.step = call.step + 1,  // people count steps from 1
                 .layer = call.layer,
                 .scale = call.scale,
                 .q = call.q,
                 .k = call.k,
                 .v = call.v,
                 .out = unused_.data(),
                 .lse = nullptr,
                 .masses = &rows});
  return rows;
}

std::vector<float> GatherMasses(Communicator& comm, const BlockMask& shape,
                                std::span<const RowMasses> rows) {
  const auto kv_blocks = static_cast<size_t>(shape.KvBlocks());
  const size_t count =
      static_cast<size_t>(shape.LaneCount()) * static_cast<size_t>(shape.QBlocks()) * kv_blocks;
  // As bits, two to a word: to what one rank has, all others add 0.
  std::vector<uint64_t> words((count + 1) / 2, 0);
  auto* bytes = reinterpret_cast<std::byte*>(words.data());
  for (const RowMasses& row : rows) {
    EQ_CHECK(row.masses.size() == kv_blocks, "masses of a row that is not dense");
    const auto at = static_cast<size_t>(row.lane * shape.QBlocks() + row.q_block) * kv_blocks;
    std::memcpy(bytes + at * sizeof(float), row.masses.data(), kv_blocks * sizeof(float));
  }
  if (comm.size() > 1 && count > 0) comm.AllReduce(std::span(words), Reduce::kSum);
  std::vector<float> masses(count);
  if (count > 0) std::memcpy(masses.data(), words.data(), count * sizeof(float));
  return masses;
}

}  // namespace equitile

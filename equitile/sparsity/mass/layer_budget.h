// One budget of mass for all rows of a layer: blocks are kept where they hold most, whichever row
// or lane they belong to. Lanes that attend everywhere evenly then keep few blocks, and lanes that
// look at few places keep all of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/function_ref.h"
#include "equitile/comm/communicator.h"
#include "equitile/pattern/block_mask.h"
#include "equitile/sparsity/mass/mass_rule.h"

namespace equitile {

// Masses of the rows of one layer that this rank has; its memory serves all layers.
class LayerBudget {
 public:
  void Clear();
  // Room for the masses of one more row, [kv blocks], in units of kWholeMass; valid until the next
  // call.
  std::span<uint32_t> Add(int64_t lane, int64_t q_block, int64_t kv_blocks);
  // The same for all rows of a lane, which threads then fill: [q blocks][kv blocks].
  std::span<uint32_t> AddLane(int64_t lane, int64_t q_blocks, int64_t kv_blocks);

  // Collective. Keeps the heaviest blocks of all ranks' rows until these hold rule.mass of what all
  // rows hold, equal ones together; then in each row at least rule.min of the blocks, and one.
  // Blocks that are kept already count. Integers only: the same blocks on any number of ranks.
  void Keep(Communicator& comm, const MassRule& rule, BlockMask& mask) const;
  // Collective. The same, until all that is not kept weighs `left` at most; in each row one block.
  void KeepAllBut(Communicator& comm, uint64_t left, BlockMask& mask) const;

  int64_t Bytes() const { return static_cast<int64_t>(masses_.capacity() * sizeof(uint32_t)); }

 private:
  struct Row {
    int64_t lane, q_block;
    size_t first, count;  // in masses_
  };
  std::span<const uint32_t> MassesOf(const Row& row) const {
    return std::span(masses_).subspan(row.first, row.count);
  }
  // The largest mass from which on all blocks together, with those that are kept already, hold
  // what is wanted of the sum of all.
  uint32_t Bound(Communicator& comm, FunctionRef<uint64_t(uint64_t sum)> wanted_of,
                 const BlockMask& mask) const;
  void KeepFrom(uint32_t bound, double min, BlockMask& mask) const;

  std::vector<Row> rows_;
  std::vector<uint32_t> masses_;
};

}  // namespace equitile

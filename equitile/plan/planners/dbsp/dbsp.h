// The layout of db-SP (arXiv 2511.23113): lanes over U Ulysses groups, query blocks and key blocks
// over R ring ranks, found by greedy partitioning of sums. A faithful reproduction of the public
// reference, tie order pinned, with defined behaviour for every size it does not define
// (docs/design/0011-dbsp.md). Pure functions of the mask.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/range.h"
#include "equitile/pattern/block_mask.h"

namespace equitile {

// The reference's v4 and v5.
enum class DbspBlocks : uint8_t { kBiasedGreedy, kSwap };
// Lanes inside a group: as assigned, or by ascending weight.
enum class DbspHeadOrder : uint8_t { kAssignment, kWeight };
// The paper's ablation; what is left out stays contiguous.
enum class DbspBalance : uint8_t { kHeads, kBlocks, kBoth };

struct DbspOptions {
  // A block is offered to its home rank as if that rank were reward·weight less loaded.
  double reward = 2;
  DbspBlocks blocks = DbspBlocks::kBiasedGreedy;
  DbspHeadOrder head_order = DbspHeadOrder::kAssignment;
  DbspBalance balance = DbspBalance::kBoth;
};

// Who owns what on U × R ranks. In ring stage s, ring rank r of a group computes its query blocks
// against the key blocks of ring rank (r + s) mod R.
struct DbspLayout {
  int64_t ulysses = 1;             // U
  int64_t ring = 1;                // R
  int64_t block_plans = 1;         // 1: all groups share one block plan; U: each group has its own
  std::vector<int32_t> lane_perm;  // [lanes] the lanes of group 0, then of group 1, ...
  std::vector<int32_t> group_begin;  // [U + 1] into lane_perm
  std::vector<int32_t> q_owner;      // [block_plans][q_blocks] ring rank
  std::vector<int32_t> kv_owner;     // [block_plans][kv_blocks] ring rank
  std::vector<int64_t> cells;        // [U][R][R] kept blocks by (group, query owner, key owner)

  std::span<const int32_t> GroupLanes(int64_t group) const;
  std::span<const int32_t> QOwner(int64_t group) const;   // [q_blocks]
  std::span<const int32_t> KvOwner(int64_t group) const;  // [kv_blocks]
  int64_t Cell(int64_t group, int64_t q_rank, int64_t kv_rank) const {
    return cells[static_cast<size_t>((group * ring + q_rank) * ring + kv_rank)];
  }
};

struct DbspScore {
  int64_t total = 0;  // kept blocks
  int64_t crit = 0;   // max over groups of the sum over stages of the max over the group's ranks
  int64_t crit_paper = 0;  // sum over stages of the max over all ranks
  double rho = 1;          // crit·U·R / total; 1 for an empty mask
  double rho_paper = 1;
  double moved_q = 0;  // query blocks not owned by their home, mean over the groups
  double moved_kv = 0;
};

// Home of a block before any exchange: the ring rank r whose EvenPart(blocks, r, ring) holds it.
std::vector<int32_t> HomeOwners(int64_t blocks, int64_t ring);

// Contiguous lanes and home blocks, as plain Ulysses × ring runs. Throws InputError unless ulysses
// and ring are positive.
DbspLayout MakeStaticLayout(const BlockMask& mask, int64_t ulysses, int64_t ring);

DbspLayout MakeDbsp(const BlockMask& mask, int64_t ulysses, int64_t ring,
                    const DbspOptions& options = {});

// Counts layout.cells anew from its owners, e.g. for another mask of the same shape.
void CountCells(const BlockMask& mask, DbspLayout& layout);

DbspScore ScoreLayout(const DbspLayout& layout);

}  // namespace equitile

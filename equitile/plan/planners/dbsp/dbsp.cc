#include "equitile/plan/planners/dbsp/dbsp.h"

#include <algorithm>
#include <numeric>

#include "equitile/base/error.h"
#include "equitile/plan/planners/dbsp/dbsp_counts.h"
#include "equitile/plan/planners/dbsp/dbsp_partition.h"

namespace equitile {
namespace {

void SetContiguousLanes(int64_t lanes, DbspLayout& layout) {
  layout.lane_perm.resize(static_cast<size_t>(lanes));
  std::iota(layout.lane_perm.begin(), layout.lane_perm.end(), 0);
  layout.group_begin.resize(static_cast<size_t>(layout.ulysses + 1));
  for (int64_t u = 0; u <= layout.ulysses; ++u) {
    layout.group_begin[static_cast<size_t>(u)] = static_cast<int32_t>(u * lanes / layout.ulysses);
  }
}

void SetGreedyLanes(std::span<const int64_t> weights, DbspHeadOrder order, DbspLayout& layout) {
  const Partition greedy = BiasedGreedy(weights, layout.ulysses, {}, 0);
  layout.group_begin.assign(static_cast<size_t>(layout.ulysses + 1), 0);
  for (int32_t group : greedy.owner) ++layout.group_begin[static_cast<size_t>(group + 1)];
  std::partial_sum(layout.group_begin.begin(), layout.group_begin.end(),
                   layout.group_begin.begin());
  std::vector<int32_t> next(layout.group_begin.begin(), layout.group_begin.end() - 1);
  layout.lane_perm.resize(weights.size());
  for (int32_t lane : greedy.order) {
    const auto group = static_cast<size_t>(greedy.owner[static_cast<size_t>(lane)]);
    layout.lane_perm[static_cast<size_t>(next[group]++)] = lane;
  }
  if (order == DbspHeadOrder::kAssignment) return;
  for (int64_t u = 0; u < layout.ulysses; ++u) {
    std::stable_sort(layout.lane_perm.begin() + layout.group_begin[static_cast<size_t>(u)],
                     layout.lane_perm.begin() + layout.group_begin[static_cast<size_t>(u + 1)],
                     [&](int32_t a, int32_t b) {
                       return weights[static_cast<size_t>(a)] < weights[static_cast<size_t>(b)];
                     });
  }
}

std::vector<int32_t> OwnBlocks(std::span<const int64_t> weights, int64_t ring,
                               const DbspOptions& options) {
  std::vector<int32_t> home = HomeOwners(static_cast<int64_t>(weights.size()), ring);
  if (options.balance == DbspBalance::kHeads) return home;
  if (options.blocks == DbspBlocks::kSwap) return SwapPartition(weights, ring, home);
  return BiasedGreedy(weights, ring, home, options.reward).owner;
}

// The blocks of each ring rank, ascending.
std::vector<std::vector<int32_t>> BlocksOf(std::span<const int32_t> owner, int64_t ring) {
  std::vector<std::vector<int32_t>> blocks(static_cast<size_t>(ring));
  for (size_t i = 0; i < owner.size(); ++i)
    blocks[static_cast<size_t>(owner[i])].push_back(static_cast<int32_t>(i));
  return blocks;
}

// [U][R][kv_blocks] kept blocks of a key block, by group and owner of the query block. Lane by lane
// with R counters at work, so that the mask comes from memory once.
std::vector<int32_t> CountColumns(const BlockMask& mask, const DbspLayout& layout) {
  const int64_t kv_blocks = mask.KvBlocks(), ring = layout.ring;
  std::vector<int32_t> counts(static_cast<size_t>(layout.ulysses * ring * kv_blocks));
  std::vector<ColumnCounter> counters(static_cast<size_t>(ring), ColumnCounter(mask.WordsPerRow()));
  std::vector<std::vector<int32_t>> rows;
  for (int64_t u = 0; u < layout.ulysses; ++u) {
    if (u == 0 || layout.block_plans > 1) rows = BlocksOf(layout.QOwner(u), ring);
    for (int32_t lane : layout.GroupLanes(u)) {
      const uint64_t* base = mask.Row(lane, 0).data();
      for (size_t r = 0; r < rows.size(); ++r) counters[r].AddRows(base, rows[r]);
    }
    for (int64_t r = 0; r < ring; ++r) {
      counters[static_cast<size_t>(r)].Drain(std::span(counts).subspan(
          static_cast<size_t>((u * ring + r) * kv_blocks), static_cast<size_t>(kv_blocks)));
    }
  }
  return counts;
}

void SumCells(std::span<const int32_t> columns, int64_t kv_blocks, DbspLayout& layout) {
  const int64_t ring = layout.ring;
  layout.cells.assign(static_cast<size_t>(layout.ulysses * ring * ring), 0);
  for (int64_t u = 0; u < layout.ulysses; ++u) {
    const std::span<const int32_t> owner = layout.KvOwner(u);
    for (int64_t r = 0; r < ring; ++r) {
      const auto column = columns.subspan(static_cast<size_t>((u * ring + r) * kv_blocks),
                                          static_cast<size_t>(kv_blocks));
      int64_t* cells = layout.cells.data() + (u * ring + r) * ring;
      for (size_t j = 0; j < column.size(); ++j) cells[owner[j]] += column[j];
    }
  }
}

// Without a ring the cells are the groups' weights.
void SumGroups(std::span<const int64_t> lane_weights, DbspLayout& layout) {
  layout.cells.assign(static_cast<size_t>(layout.ulysses), 0);
  for (int64_t u = 0; u < layout.ulysses; ++u) {
    for (int32_t lane : layout.GroupLanes(u)) {
      layout.cells[static_cast<size_t>(u)] += lane_weights[static_cast<size_t>(lane)];
    }
  }
}

std::vector<int64_t> SumColumns(std::span<const int32_t> columns, int64_t kv_blocks) {
  std::vector<int64_t> sum(static_cast<size_t>(kv_blocks));
  for (size_t begin = 0; begin < columns.size(); begin += sum.size()) {
    for (size_t j = 0; j < sum.size(); ++j) sum[j] += columns[begin + j];
  }
  return sum;
}

DbspLayout EmptyLayout(int64_t ulysses, int64_t ring) {
  if (ulysses <= 0 || ring <= 0) {
    throw InputError("[plan] {}x{}: the Ulysses and the ring degree must both be positive", ulysses,
                     ring);
  }
  DbspLayout layout;
  layout.ulysses = ulysses;
  layout.ring = ring;
  return layout;
}

double MeanMoved(std::span<const int32_t> owners, int64_t block_plans, int64_t ring) {
  const int64_t blocks = static_cast<int64_t>(owners.size()) / block_plans;
  const std::vector<int32_t> home = HomeOwners(blocks, ring);
  int64_t moved = 0;
  for (int64_t plan = 0; plan < block_plans; ++plan) {
    for (int64_t i = 0; i < blocks; ++i) {
      moved += owners[static_cast<size_t>(plan * blocks + i)] != home[static_cast<size_t>(i)];
    }
  }
  return static_cast<double>(moved) / static_cast<double>(block_plans);
}

}  // namespace

std::span<const int32_t> DbspLayout::GroupLanes(int64_t group) const {
  const auto begin = static_cast<size_t>(group_begin[static_cast<size_t>(group)]);
  return std::span(lane_perm).subspan(
      begin, static_cast<size_t>(group_begin[static_cast<size_t>(group + 1)]) - begin);
}

std::span<const int32_t> DbspLayout::QOwner(int64_t group) const {
  const size_t blocks = q_owner.size() / static_cast<size_t>(block_plans);
  return std::span(q_owner).subspan(block_plans == 1 ? 0 : static_cast<size_t>(group) * blocks,
                                    blocks);
}

std::span<const int32_t> DbspLayout::KvOwner(int64_t group) const {
  const size_t blocks = kv_owner.size() / static_cast<size_t>(block_plans);
  return std::span(kv_owner).subspan(block_plans == 1 ? 0 : static_cast<size_t>(group) * blocks,
                                     blocks);
}

std::vector<int32_t> HomeOwners(int64_t blocks, int64_t ring) {
  std::vector<int32_t> home(static_cast<size_t>(blocks));
  for (int64_t r = 0; r < ring; ++r) {
    const Range part = EvenPart(blocks, r, ring);
    std::fill(home.begin() + part.begin, home.begin() + part.end, static_cast<int32_t>(r));
  }
  return home;
}

DbspLayout MakeStaticLayout(const BlockMask& mask, int64_t ulysses, int64_t ring) {
  DbspLayout layout = EmptyLayout(ulysses, ring);
  SetContiguousLanes(mask.LaneCount(), layout);
  layout.q_owner = HomeOwners(mask.QBlocks(), ring);
  layout.kv_owner = HomeOwners(mask.KvBlocks(), ring);
  CountCells(mask, layout);
  return layout;
}

DbspLayout MakeDbsp(const BlockMask& mask, int64_t ulysses, int64_t ring,
                    const DbspOptions& options) {
  DbspLayout layout = EmptyLayout(ulysses, ring);
  std::vector<int64_t> lane_weights;
  if (ulysses > 1 || ring == 1) lane_weights = CountLanes(mask);
  if (ulysses == 1 || options.balance == DbspBalance::kBlocks) {
    SetContiguousLanes(mask.LaneCount(), layout);
  } else {
    SetGreedyLanes(lane_weights, options.head_order, layout);
  }
  if (ring == 1) {
    layout.q_owner.assign(static_cast<size_t>(mask.QBlocks()), 0);
    layout.kv_owner.assign(static_cast<size_t>(mask.KvBlocks()), 0);
    SumGroups(lane_weights, layout);
    return layout;
  }
  layout.q_owner = OwnBlocks(CountRows(mask), ring, options);
  const std::vector<int32_t> columns = CountColumns(mask, layout);
  layout.kv_owner = OwnBlocks(SumColumns(columns, mask.KvBlocks()), ring, options);
  SumCells(columns, mask.KvBlocks(), layout);
  return layout;
}

void CountCells(const BlockMask& mask, DbspLayout& layout) {
  if (layout.ring == 1) {
    SumGroups(CountLanes(mask), layout);
  } else {
    SumCells(CountColumns(mask, layout), mask.KvBlocks(), layout);
  }
}

DbspScore ScoreLayout(const DbspLayout& layout) {
  const int64_t ring = layout.ring, ranks = layout.ulysses * ring;
  DbspScore score;
  std::vector<int64_t> stage_max(static_cast<size_t>(ring));  // over all groups
  for (int64_t u = 0; u < layout.ulysses; ++u) {
    int64_t group_crit = 0;
    for (int64_t s = 0; s < ring; ++s) {
      int64_t longest = 0;
      for (int64_t r = 0; r < ring; ++r) {
        const int64_t cell = layout.Cell(u, r, (r + s) % ring);
        score.total += cell;
        longest = std::max(longest, cell);
      }
      group_crit += longest;
      stage_max[static_cast<size_t>(s)] = std::max(stage_max[static_cast<size_t>(s)], longest);
    }
    score.crit = std::max(score.crit, group_crit);
  }
  score.crit_paper = std::accumulate(stage_max.begin(), stage_max.end(), int64_t{0});
  if (score.total > 0) {
    const double mean = static_cast<double>(score.total) / static_cast<double>(ranks);
    score.rho = static_cast<double>(score.crit) / mean;
    score.rho_paper = static_cast<double>(score.crit_paper) / mean;
  }
  score.moved_q = MeanMoved(layout.q_owner, layout.block_plans, ring);
  score.moved_kv = MeanMoved(layout.kv_owner, layout.block_plans, ring);
  return score;
}

}  // namespace equitile

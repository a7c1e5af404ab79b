// From ownership to transfers and tasks. Apart from program.h because only this file knows how each
// Movement is carried out.
#include <algorithm>
#include <numeric>

#include "equitile/base/error.h"
#include "equitile/plan/core/kv_need.h"
#include "equitile/plan/core/program.h"

namespace equitile {
namespace {

class Lowering {
 public:
  Lowering(const Plan& plan, const LaneMasks& masks)
      : plan_(plan), masks_(masks), mask_(masks.blocks()) {
    program_.problem = plan.problem();
    program_.kv_sets.push_back(FullKvSet(mask_.KvBlocks()));
  }

  Program Run() {
    if (plan_.movement() == Movement::kExchange) {
      LowerExchange();
    } else {
      LowerRings();
    }
    return std::move(program_);
  }

 private:
  Span Append(const std::vector<LaneBlocks>& blocks) {
    const Span span{std::ssize(program_.blocks), std::ssize(blocks)};
    program_.blocks.insert(program_.blocks.end(), blocks.begin(), blocks.end());
    return span;
  }

  void Move(Cargo cargo, int32_t from, int32_t to, Span blocks) {
    if (blocks.count > 0)
      program_.transfers.push_back({.cargo = cargo, .from = from, .to = to, .blocks = blocks});
  }

  // Means are small and go ahead of everything else: to every rank those of all lanes with tails
  // that it has rows of.
  void MoveMeans() {
    if (masks_.tails().empty()) return;
    std::vector<std::vector<LaneBlocks>> of_rank(static_cast<size_t>(plan_.ranks()));
    for (int32_t lane = 0; lane < plan_.problem().lanes.Count(); ++lane) {
      if (masks_.TailOf(lane) == Tail::kNone) continue;
      for (const RowRun& run : plan_.RunsOf(lane)) {
        std::vector<LaneBlocks>& lanes = of_rank[static_cast<size_t>(run.rank)];
        if (lanes.empty() || lanes.back().lane != lane)
          lanes.push_back({lane, 0, static_cast<int32_t>(mask_.KvBlocks())});
      }
    }
    for (int32_t rank = 0; rank < plan_.ranks(); ++rank)
      Move(Cargo::kMeans, kHome, rank, Append(of_rank[static_cast<size_t>(rank)]));
  }

  // Rows of every (stage, rank), lanes ascending.
  void LowerExchange() {
    struct Held {
      int32_t stage, rank;
      LaneBlocks rows;
    };
    std::vector<Held> held;
    for (int32_t lane = 0; lane < plan_.problem().lanes.Count(); ++lane) {
      int32_t begin = 0;
      for (const RowRun& run : plan_.RunsOf(lane)) {
        held.push_back({run.stage, run.rank, {lane, begin, run.end}});
        begin = run.end;
      }
    }
    std::stable_sort(held.begin(), held.end(), [](const Held& a, const Held& b) {
      return a.stage != b.stage ? a.stage < b.stage : a.rank < b.rank;
    });
    size_t next = 0;
    std::vector<LaneBlocks> rows;
    for (int32_t stage = 0; stage < plan_.Stages(); ++stage) {
      const int64_t first_task = std::ssize(program_.tasks);
      Stage now{
          .inputs = {std::ssize(program_.transfers), 0}, .tasks = {first_task, 0}, .returns = {}};
      if (stage == 0) MoveMeans();
      while (next < held.size() && held[next].stage == stage) {
        const int32_t rank = held[next].rank;
        rows.clear();
        for (; next < held.size() && held[next].stage == stage && held[next].rank == rank; ++next) {
          rows.push_back(held[next].rows);
        }
        program_.tasks.push_back({.rank = rank, .kv_set = 0, .rows = Append(rows)});
        Move(Cargo::kQ, kHome, rank, program_.tasks.back().rows);
        Move(Cargo::kKv, kHome, rank, Append(ExchangedKv(rows)));
      }
      now.inputs.count = std::ssize(program_.transfers) - now.inputs.first;
      now.tasks.count = std::ssize(program_.tasks) - first_task;
      now.returns = Returns(now.tasks);
      program_.stages.push_back(now);
    }
  }

  Span Returns(Span tasks) {
    Span returns{std::ssize(program_.transfers), 0};
    for (const Task& task : program_.TasksOf(tasks)) Move(Cargo::kO, task.rank, kHome, task.rows);
    returns.count = std::ssize(program_.transfers) - returns.first;
    return returns;
  }

  // K/V for rows of one rank in one stage; entries of one lane are neighbours.
  std::vector<LaneBlocks> ExchangedKv(const std::vector<LaneBlocks>& rows) const {
    std::vector<LaneBlocks> kv;
    std::vector<uint64_t> need(static_cast<size_t>(mask_.WordsPerRow()));
    for (size_t i = 0; i < rows.size();) {
      const int32_t lane = rows[i].lane;
      std::fill(need.begin(), need.end(), 0);
      for (; i < rows.size() && rows[i].lane == lane; ++i) {
        if (plan_.needed_kv_only()) AddNeed(mask_, lane, rows[i].blocks(), need);
      }
      if (plan_.needed_kv_only()) {
        AppendRanges(lane, need, kv);
      } else {
        kv.push_back({lane, 0, static_cast<int32_t>(mask_.KvBlocks())});
      }
    }
    return kv;
  }

  static void AppendRanges(int32_t lane, std::span<const uint64_t> words,
                           std::vector<LaneBlocks>& out) {
    ForEachBitRange(words, [&](Range blocks) {
      out.push_back({lane, static_cast<int32_t>(blocks.begin), static_cast<int32_t>(blocks.end)});
    });
  }

  // One ring group: what its ranks own. Lists are sorted by the last stage in which a block is
  // needed, latest first, so that what travels in a stage is a prefix.
  struct RingLists {
    std::vector<Span> rows;  // [R]
    std::vector<Span> kv;    // [R] everything of the chunk that somebody needs
    std::vector<std::vector<int64_t>>
        in_stage;  // [R][R] length of the prefix of kv that is needed in stage s or later
    std::vector<int32_t> kv_set;  // [R]
  };

  void LowerRings() {
    std::vector<RingLists> lists;
    for (const RingGroup& ring : plan_.rings()) lists.push_back(ListsOf(ring));
    const int32_t ring_size = plan_.Stages();
    for (int32_t stage = 0; stage < ring_size; ++stage) {
      Stage now{.inputs = {std::ssize(program_.transfers), 0},
                .tasks = {std::ssize(program_.tasks), 0},
                .returns = {}};
      if (stage == 0) MoveMeans();
      for (size_t g = 0; g < lists.size(); ++g) AddRingStage(plan_.rings()[g], lists[g], stage);
      now.inputs.count = std::ssize(program_.transfers) - now.inputs.first;
      now.tasks.count = std::ssize(program_.tasks) - now.tasks.first;
      if (stage == ring_size - 1) now.returns = Returns(now.tasks);
      program_.stages.push_back(now);
    }
  }

  void AddRingStage(const RingGroup& ring, const RingLists& lists, int32_t stage) {
    const size_t ring_size = ring.ranks.size();
    for (size_t r = 0; r < ring_size; ++r) {
      const size_t chunk = (r + static_cast<size_t>(stage)) % ring_size;
      const Span kv{lists.kv[chunk].first, lists.in_stage[chunk][static_cast<size_t>(stage)]};
      if (stage == 0) Move(Cargo::kQ, kHome, ring.ranks[r], lists.rows[r]);
      Move(Cargo::kKv, stage == 0 ? kHome : ring.ranks[(r + 1) % ring_size], ring.ranks[r], kv);
      if (lists.rows[r].count > 0) {
        program_.tasks.push_back(
            {.rank = ring.ranks[r], .kv_set = lists.kv_set[chunk], .rows = lists.rows[r]});
      }
    }
  }

  RingLists ListsOf(const RingGroup& ring) {
    const size_t ring_size = ring.ranks.size();
    RingLists lists{.rows = RowsOf(ring), .kv = {}, .in_stage = {}, .kv_set = {}};
    struct Travelling {
      int32_t last_stage;
      LaneBlocks blocks;
    };
    std::vector<std::vector<Travelling>> chunks(ring_size);
    const std::vector<int32_t>& kv_owner = plan_.KvOwner(ring);
    RingNeed need(plan_, mask_, ring);
    for (int32_t lane : ring.lanes) {
      const std::vector<int32_t>& last_stages = need.LastStages(lane);
      for (int32_t block = 0; block < std::ssize(last_stages); ++block) {
        const int32_t last_stage = last_stages[static_cast<size_t>(block)];
        if (last_stage == kNeverNeeded) continue;
        auto& chunk = chunks[static_cast<size_t>(kv_owner[static_cast<size_t>(block)])];
        if (!chunk.empty() && chunk.back().last_stage == last_stage &&
            chunk.back().blocks.lane == lane && chunk.back().blocks.end == block) {
          ++chunk.back().blocks.end;
        } else {
          chunk.push_back({last_stage, {lane, block, block + 1}});
        }
      }
    }
    std::vector<KvSet> sets = RingKvSets(plan_, ring);
    for (size_t c = 0; c < ring_size; ++c) {
      std::stable_sort(
          chunks[c].begin(), chunks[c].end(),
          [](const Travelling& a, const Travelling& b) { return a.last_stage > b.last_stage; });
      std::vector<int64_t> in_stage(ring_size, 0);
      const Span kv{std::ssize(program_.blocks), std::ssize(chunks[c])};
      for (const Travelling& item : chunks[c]) {
        program_.blocks.push_back(item.blocks);
        ++in_stage[static_cast<size_t>(item.last_stage)];
      }
      std::partial_sum(in_stage.rbegin(), in_stage.rend(), in_stage.rbegin());
      lists.kv.push_back(kv);
      lists.in_stage.push_back(std::move(in_stage));
      lists.kv_set.push_back(static_cast<int32_t>(program_.kv_sets.size()));
      program_.kv_sets.push_back(std::move(sets[c]));
    }
    return lists;
  }

  std::vector<Span> RowsOf(const RingGroup& ring) {
    std::vector<std::vector<LaneBlocks>> rows(ring.ranks.size());
    std::vector<size_t> ring_rank(static_cast<size_t>(plan_.ranks()));
    for (size_t r = 0; r < ring.ranks.size(); ++r)
      ring_rank[static_cast<size_t>(ring.ranks[r])] = r;
    for (int32_t lane : ring.lanes) {
      int32_t begin = 0;
      for (const RowRun& run : plan_.RunsOf(lane)) {
        rows[ring_rank[static_cast<size_t>(run.rank)]].push_back({lane, begin, run.end});
        begin = run.end;
      }
    }
    std::vector<Span> spans;
    for (const auto& list : rows) spans.push_back(Append(list));
    return spans;
  }

  const Plan& plan_;
  const LaneMasks& masks_;
  const BlockMask& mask_;
  Program program_;
};

}  // namespace

void CheckMaskFits(const Problem& problem, const BlockMask& mask) {
  if (mask.lanes() == problem.lanes && mask.grid() == problem.grid) return;
  throw InputError(
      "[plan] mask of batch {}, {} heads, {}x{} tokens in blocks of {} does not fit a plan for "
      "batch {}, {} heads, {}x{} "
      "tokens in blocks of {}",
      mask.lanes().batch, mask.lanes().heads, mask.grid().q_tokens, mask.grid().kv_tokens,
      mask.grid().block_tokens, problem.lanes.batch, problem.lanes.heads, problem.grid.q_tokens,
      problem.grid.kv_tokens, problem.grid.block_tokens);
}

void CheckMaskFits(const Problem& problem, const LaneMasks& masks) {
  CheckMaskFits(problem, masks.blocks());
  if (masks.orders() == problem.orders && masks.token_grid() == problem.token_grid) return;
  throw InputError(
      "[plan] masks and plan line tokens up in different orders; plan from these masks");
}

Program Lower(const Plan& plan, const LaneMasks& masks) {
  CheckMaskFits(plan.problem(), masks);
  return Lowering(plan, masks).Run();
}

}  // namespace equitile

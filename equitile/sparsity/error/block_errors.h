// What it costs to leave a block out: how far the outputs of a block's queries move when one kv
// block is no longer computed but stands there as its mean, or not at all. Mass is the wrong
// yardstick where means take the place of what is left out: an even block may hold much and lose
// nothing. Judged by a few queries of each block, which are computed exactly.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/function_ref.h"
#include "equitile/base/thread_pool.h"
#include "equitile/kernel/attention/block_partials.h"
#include "equitile/pattern/tail.h"

namespace equitile {

// Positions of the queries that stand for their blocks: `rows` of each, evenly spread, fewer where
// a block has fewer; ascending.
std::vector<int64_t> SampledPositions(const BlockGrid& grid, int64_t rows);

// One lane in one order, and what is known of its errors. Its memory serves all lanes.
class BlockErrors {
 public:
  // Rows that stay where they are. queries: those of SampledPositions, each [head_dim].
  struct Lane {
    LaneKeys keys;
    std::vector<const float*> queries;
    float scale = 0;
    Tail tail = Tail::kNone;
    // A part of the work: a block's queries in turns see one of so many positions, as if these were
    // all keys there are. An even block is even in each part, so that none is judged worse than it
    // is; neighbours are much alike. Blocks are a multiple of 16 times it.
    int64_t key_step = 1;
    // Values are folded to so many dims (PackedLane); 0: they are not.
    int64_t value_dims = 0;
  };
  // Not yet packed, nothing judged.
  void Begin(Lane lane, int64_t rows);

  // [q blocks][kv blocks]: sum over the block's queries of the square of what the output moves by
  // when this block alone is left out, to first order. 0 where not judged.
  const std::vector<float>& errors() const { return errors_; }
  // Of the outputs of the judged blocks: what errors are a share of.
  double Squares() const;
  // Of these rows of blocks alone.
  std::vector<float> ErrorsOf(std::span<const int64_t> q_blocks) const;
  int64_t Bytes() const;

 private:
  friend class BlockJudge;
  // What some of the queries see.
  struct Part {
    std::vector<int32_t> token_at_position;
    LaneKeys keys;
    PackedLane packed;
  };
  // As many rows of blocks as have the queries that are computed together.
  int64_t RowsAtOnce() const;
  void Judge(std::span<const int64_t> q_blocks, BlockPartials& partials);

  Lane lane_;
  int64_t rows_ = 0;
  std::vector<int64_t> first_row_;  // [q blocks + 1]: of its queries
  std::vector<Part> parts_;         // [key_step]
  std::vector<float> errors_;
  std::vector<double> squares_;  // [q blocks]
};

// The threads of a rank on all its lanes together, for one lane alone has too few queries for many;
// or one thread on lanes of its own, beside the others: what it packs it then finds in its cache.
class BlockJudge {
 public:
  static constexpr int kAllThreads = -1;

  explicit BlockJudge(ThreadPool& pool);

  // Lanes that have begun. Once per lane. thread: of the pool, who calls.
  void Pack(std::span<BlockErrors* const> lanes, int thread = kAllThreads);
  // Judges rows of blocks that have not been judged. The same bits for any number of threads and
  // whatever else is judged in the call.
  void Judge(std::span<BlockErrors* const> lanes, std::span<const int64_t> q_blocks,
             int thread = kAllThreads);

  int64_t Bytes() const;

 private:
  void Deal(int64_t tasks, int thread, FunctionRef<void(int64_t task, int thread)> task);

  ThreadPool& pool_;
  std::vector<BlockPartials> partials_;  // one per thread
};

// The fewest blocks that may be kept so that the errors of all others sum up to at most `allowed`.
int64_t BlocksNeeded(std::span<const float> errors, double allowed);

}  // namespace equitile

#include "equitile/plan/stage_work.h"

#include <algorithm>
#include <bit>

#include "equitile/plan/kv_need.h"
#include "equitile/plan/program.h"

namespace equitile {
namespace {

void AddWholeRows(const Plan& plan, std::span<const int32_t> row_blocks, StageWork& out) {
  const int64_t q_blocks = plan.problem().grid.QBlocks();
  for (int64_t lane = 0; lane < plan.problem().lanes.Count(); ++lane) {
    int64_t row = 0;
    for (const RowRun& run : plan.RunsOf(lane)) {
      Work work;
      for (; row < run.end; ++row) {
        const int32_t kept = row_blocks[static_cast<size_t>(lane * q_blocks + row)];
        work.blocks += kept;
        work.rows += kept > 0;
      }
      Work& sum = out.At(run.rank, run.stage);
      sum.blocks += work.blocks;
      sum.rows += work.rows;
    }
  }
}

// Counts one ring group's rows by chunk: [R] chunks of one run of rows at a time.
class ChunkCounter {
 public:
  ChunkCounter(const BlockMask& mask, const RingGroup& ring)
      : mask_(mask),
        ring_(ring),
        sets_(RingKvSets(ring)),
        chunk_(ring.ranks.size()),
        seen_in_row_(ring.ranks.size(), -1) {
    for (const KvSet& set : sets_) set_words_ += std::ssize(set);
  }

  // Adds rows [rows) of a lane to chunks(); row_blocks: [rows].
  void Count(int64_t lane, Range rows, const int32_t* row_blocks) {
    std::fill(chunk_.begin(), chunk_.end(), Work{});
    int64_t kept = 0;
    for (int64_t i = 0; i < rows.size(); ++i) kept += row_blocks[i];
    if (kept == 0) return;
    // Either every chunk is counted word by word, or every kept block is looked at: about two words
    // are counted in the time of one block, and a call for a chunk takes about as long as four
    // words (bench_plan, StageWork).
    const int64_t chunks = std::ssize(sets_);
    if (set_words_ * rows.size() + 4 * chunks > 2 * kept) {
      CountBlocks(lane, rows);
    } else {
      CountWords(lane, rows, row_blocks);
    }
  }

  const std::vector<Work>& chunks() const { return chunk_; }

 private:
  void CountBlocks(int64_t lane, Range rows) {
    for (int64_t row = rows.begin; row < rows.end; ++row, ++rows_seen_) {
      mask_.ForEachKept(lane, row, [&](int64_t block) {
        const size_t chunk = static_cast<size_t>(ring_.kv_owner[static_cast<size_t>(block)]);
        ++chunk_[chunk].blocks;
        chunk_[chunk].rows += seen_in_row_[chunk] != rows_seen_;
        seen_in_row_[chunk] = rows_seen_;
      });
    }
  }

  // The last chunk is what the others leave of the row.
  void CountWords(int64_t lane, Range rows, const int32_t* row_blocks) {
    const size_t row_count = static_cast<size_t>(rows.size());
    left_.assign(row_blocks, row_blocks + row_count);
    count_.resize(row_count);
    for (size_t c = 0; c + 1 < sets_.size(); ++c) {
      CountMaskedBitsOfRows(mask_.Row(lane, rows.begin).data(), rows.size(), mask_.WordsPerRow(),
                            sets_[c].data(), std::ssize(sets_[c]), count_.data());
      for (size_t i = 0; i < row_count; ++i) left_[i] -= count_[i];
      AddRows(count_, chunk_[c]);
    }
    AddRows(left_, chunk_.back());
  }

  static void AddRows(const std::vector<int32_t>& counts, Work& work) {
    for (int32_t count : counts) {
      work.blocks += count;
      work.rows += count > 0;
    }
  }

  const BlockMask& mask_;
  const RingGroup& ring_;
  std::vector<KvSet> sets_;
  int64_t set_words_ = 0;
  std::vector<Work> chunk_;           // [R]
  std::vector<int64_t> seen_in_row_;  // [R] number of the last row that had a block in the chunk
  int64_t rows_seen_ = 0;
  std::vector<int32_t> left_, count_;  // [rows]
};

void AddRing(const Plan& plan, const BlockMask& mask, const RingGroup& ring,
             std::span<const int32_t> row_blocks, StageWork& out) {
  const int32_t ring_size = static_cast<int32_t>(ring.ranks.size());
  std::vector<int32_t> ring_rank(static_cast<size_t>(plan.ranks()));
  for (int32_t r = 0; r < ring_size; ++r)
    ring_rank[static_cast<size_t>(ring.ranks[static_cast<size_t>(r)])] = r;
  ChunkCounter counter(mask, ring);
  for (int32_t lane : ring.lanes) {
    int64_t begin = 0;
    for (const RowRun& run : plan.RunsOf(lane)) {
      counter.Count(lane, {begin, run.end}, row_blocks.data() + lane * mask.QBlocks() + begin);
      const int32_t r = ring_rank[static_cast<size_t>(run.rank)];
      for (int32_t chunk = 0; chunk < ring_size; ++chunk) {
        Work& sum = out.At(run.rank, (chunk - r + ring_size) % ring_size);
        sum.blocks += counter.chunks()[static_cast<size_t>(chunk)].blocks;
        sum.rows += counter.chunks()[static_cast<size_t>(chunk)].rows;
      }
      begin = run.end;
    }
  }
}

}  // namespace

Work StageWork::OfRank(int32_t rank) const {
  Work sum;
  for (int32_t stage = 0; stage < stages; ++stage) {
    sum.blocks += At(rank, stage).blocks;
    sum.rows += At(rank, stage).rows;
  }
  return sum;
}

StageWork CountStageWork(const Plan& plan, const BlockMask& mask,
                         std::span<const int32_t> row_blocks) {
  CheckMaskFits(plan.problem(), mask);
  StageWork out{.ranks = plan.ranks(), .stages = plan.Stages(), .work = {}};
  out.work.resize(static_cast<size_t>(int64_t{out.ranks} * out.stages));
  if (plan.movement() == Movement::kExchange || out.stages == 1) {
    AddWholeRows(plan, row_blocks, out);
  } else {
    for (const RingGroup& ring : plan.rings()) AddRing(plan, mask, ring, row_blocks, out);
  }
  return out;
}

}  // namespace equitile

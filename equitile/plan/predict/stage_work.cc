#include "equitile/plan/predict/stage_work.h"

#include <numeric>

#include "equitile/base/bit_count.h"
#include "equitile/plan/core/kv_need.h"
#include "equitile/plan/core/program.h"

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

// Adds the rows of one ring group, lane by lane.
class RingCounter {
 public:
  RingCounter(const Plan& plan, const BlockMask& mask, const RingGroup& ring, StageWork& out)
      : plan_(plan),
        mask_(mask),
        ring_(ring),
        out_(out),
        ring_rank_(static_cast<size_t>(plan.ranks())),
        last_row_(ring.ranks.size(), -1) {
    for (const KvSet& set : RingKvSets(plan, ring)) {
      chunks_.push_back({});
      if (set.empty()) continue;
      chunks_.back().first_word = set.front().word;
      chunks_.back().bits.resize(static_cast<size_t>(set.back().word - set.front().word + 1));
      for (const WordBits& part : set)
        chunks_.back().bits[static_cast<size_t>(part.word - set.front().word)] = part.bits;
      chunk_words_ += std::ssize(chunks_.back().bits);
    }
    for (int32_t r = 0; r < Size(); ++r)
      ring_rank_[static_cast<size_t>(ring.ranks[static_cast<size_t>(r)])] = r;
  }

  // row_blocks: [q_blocks] of the lane.
  void AddLane(int64_t lane, std::span<const int32_t> row_blocks) {
    const int64_t kept = std::accumulate(row_blocks.begin(), row_blocks.end(), int64_t{0});
    // Either every chunk is counted word by word, or every kept block is looked at, which takes
    // about four times as long as a word does (bench_plan, StageWork).
    if ((chunk_words_ + Size()) * std::ssize(row_blocks) < 4 * kept) {
      AddByWords(lane, row_blocks);
    } else {
      AddByBlocks(lane);
    }
  }

 private:
  // The words of a mask row that the chunk has blocks in, all from the first to the last.
  struct Chunk {
    int64_t first_word = 0;
    std::vector<uint64_t> bits;
  };

  int32_t Size() const { return static_cast<int32_t>(ring_.ranks.size()); }
  int32_t StageOf(int32_t chunk, int32_t ring_rank) const {
    return chunk >= ring_rank ? chunk - ring_rank : chunk - ring_rank + Size();
  }

  void AddByBlocks(int64_t lane) {
    const std::vector<int32_t>& kv_owner = plan_.KvOwner(ring_);
    int64_t row = 0;
    for (const RowRun& run : plan_.RunsOf(lane)) {
      const int32_t r = ring_rank_[static_cast<size_t>(run.rank)];
      Work* stages = &out_.At(run.rank, 0);
      for (; row < run.end; ++row, ++rows_seen_) {
        mask_.ForEachKept(lane, row, [&](int64_t block) {
          const int32_t chunk = kv_owner[static_cast<size_t>(block)];
          Work& work = stages[StageOf(chunk, r)];
          ++work.blocks;
          int64_t& last_row = last_row_[static_cast<size_t>(chunk)];
          work.rows += last_row != rows_seen_;
          last_row = rows_seen_;
        });
      }
    }
  }

  // The last chunk is what the others leave of a row.
  void AddByWords(int64_t lane, std::span<const int32_t> row_blocks) {
    left_.assign(row_blocks.begin(), row_blocks.end());
    count_.resize(row_blocks.size());
    for (int32_t chunk = 0; chunk + 1 < Size(); ++chunk) {
      const Chunk& masked = chunks_[static_cast<size_t>(chunk)];
      CountMaskedBitsOfRows(mask_.Row(lane, 0).data(), mask_.QBlocks(), mask_.WordsPerRow(),
                            masked.bits.data(), masked.first_word, std::ssize(masked.bits),
                            count_.data());
      for (size_t row = 0; row < left_.size(); ++row) left_[row] -= count_[row];
      AddCounts(lane, chunk, count_);
    }
    AddCounts(lane, Size() - 1, left_);
  }

  void AddCounts(int64_t lane, int32_t chunk, const std::vector<int32_t>& counts) {
    size_t row = 0;
    for (const RowRun& run : plan_.RunsOf(lane)) {
      Work& work = out_.At(run.rank, StageOf(chunk, ring_rank_[static_cast<size_t>(run.rank)]));
      for (; row < static_cast<size_t>(run.end); ++row) {
        work.blocks += counts[row];
        work.rows += counts[row] > 0;
      }
    }
  }

  const Plan& plan_;
  const BlockMask& mask_;
  const RingGroup& ring_;
  StageWork& out_;
  std::vector<Chunk> chunks_;  // [R]
  int64_t chunk_words_ = 0;
  std::vector<int32_t> ring_rank_;  // [ranks]
  std::vector<int64_t> last_row_;   // [R] number of the last row that had a block in the chunk
  int64_t rows_seen_ = 0;
  std::vector<int32_t> left_, count_;  // [q_blocks]
};

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
    const size_t q_blocks = static_cast<size_t>(mask.QBlocks());
    for (const RingGroup& ring : plan.rings()) {
      RingCounter counter(plan, mask, ring, out);
      for (int32_t lane : ring.lanes)
        counter.AddLane(lane, row_blocks.subspan(static_cast<size_t>(lane) * q_blocks, q_blocks));
    }
  }
  return out;
}

}  // namespace equitile

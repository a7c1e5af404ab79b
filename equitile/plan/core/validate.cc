#include "equitile/plan/core/validate.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/plan/core/walker.h"

namespace equitile {
namespace {

constexpr int32_t kNobody = -1, kNever = -1;

struct Violation {
  std::string words;
};

// K/V that each rank holds for one stage: [ranks][lanes][words] bits, emptied by forgetting only
// what was written.
class HeldKv {
 public:
  HeldKv(int32_t ranks, int64_t lanes, int64_t words)
      : lanes_(lanes),
        words_(words),
        bits_(static_cast<size_t>(ranks * lanes * words)),
        touched_(static_cast<size_t>(ranks)) {}

  uint64_t* Lane(int32_t rank, int64_t lane) {
    return &bits_[static_cast<size_t>((rank * lanes_ + lane) * words_)];
  }
  bool Has(int32_t rank, int64_t lane, int64_t block) {
    return Lane(rank, lane)[block / 64] >> (block % 64) & 1;
  }

  void Add(int32_t rank, const LaneBlocks& item) {
    touched_[static_cast<size_t>(rank)].push_back(item.lane);
    uint64_t* words = Lane(rank, item.lane);
    for (int64_t block = item.begin; block < item.end; ++block)
      words[block / 64] |= uint64_t{1} << (block % 64);
  }

  void Forget() {
    for (int32_t rank = 0; rank < std::ssize(touched_); ++rank) {
      for (int32_t lane : touched_[static_cast<size_t>(rank)])
        std::fill_n(Lane(rank, lane), words_, 0);
      touched_[static_cast<size_t>(rank)].clear();
    }
  }

 private:
  int64_t lanes_, words_;
  std::vector<uint64_t> bits_;
  std::vector<std::vector<int32_t>> touched_;
};

class Validator {
 public:
  Validator(const Program& program, const LaneMasks& masks)
      : program_(program),
        masks_(masks),
        mask_(masks.blocks()),
        lanes_(mask_.LaneCount()),
        q_blocks_(mask_.QBlocks()),
        held_(program.problem.ranks, lanes_, mask_.WordsPerRow()),
        held_before_(held_),
        means_(held_),
        q_at_(Rows(), kNobody),
        computed_by_(Rows(), kNobody),
        returned_in_(Rows(), kNever),
        computed_(mask_.lanes(), mask_.grid()) {}

  void HomeSends(int32_t stage) {
    for (const Transfer& transfer :
         program_.TransfersOf(program_.stages[static_cast<size_t>(stage)].inputs)) {
      CheckTransfer(transfer, stage, /*is_input=*/true);
    }
    for (const Transfer& transfer :
         program_.TransfersOf(program_.stages[static_cast<size_t>(stage)].returns)) {
      CheckTransfer(transfer, stage, /*is_input=*/false);
    }
  }

  void Receive(int32_t) {}

  void Await(int32_t stage) {
    std::swap(held_, held_before_);
    held_.Forget();
    for (const Transfer& transfer :
         program_.TransfersOf(program_.stages[static_cast<size_t>(stage)].inputs)) {
      for (const LaneBlocks& item : program_.BlocksOf(transfer.blocks)) {
        if (transfer.cargo == Cargo::kQ) {
          ArriveQ(transfer.to, item);
        } else if (transfer.cargo == Cargo::kMeans) {
          means_.Add(transfer.to, item);
        } else {
          if (transfer.from != kHome) CheckPassedOn(transfer, item, stage);
          held_.Add(transfer.to, item);
        }
      }
    }
  }

  void Compute(int32_t stage) {
    for (const Task& task : program_.TasksOf(program_.stages[static_cast<size_t>(stage)].tasks)) {
      if (task.rank < 0 || task.rank >= program_.problem.ranks)
        Fail("stage {}: task on rank {}, which does not exist", stage, task.rank);
      if (task.kv_set < 0 || task.kv_set >= std::ssize(program_.kv_sets))
        Fail("stage {}: rank {} computes kv set {}, which does not exist", stage, task.rank,
             task.kv_set);
      for (const LaneBlocks& item : program_.BlocksOf(task.rows)) {
        CheckBlocks(item, q_blocks_, stage);
        for (int64_t row = item.begin; row < item.end; ++row)
          ComputeRow(task, item.lane, row, stage);
      }
    }
  }

  void Return(int32_t stage) {
    for (const Transfer& transfer :
         program_.TransfersOf(program_.stages[static_cast<size_t>(stage)].returns)) {
      for (const LaneBlocks& item : program_.BlocksOf(transfer.blocks)) {
        for (int64_t row = item.begin; row < item.end; ++row)
          ReturnRow(transfer.from, item.lane, row, stage);
      }
    }
  }

  void Finish() {
    for (int64_t lane = 0; lane < lanes_; ++lane) {
      for (int64_t row = 0; row < q_blocks_; ++row) {
        const size_t index = Row(lane, row);
        mask_.ForEachKept(lane, row, [&](int64_t block) {
          if (!computed_.Get(lane, row, block))
            Fail("lane {} row {}: block {} is kept but never computed", lane, row, block);
        });
        if (returned_in_[index] == kNever)
          Fail("lane {} row {}: its output never goes home", lane, row);
      }
    }
  }

 private:
  template <typename... Args>
  [[noreturn]] static void Fail(fmt::format_string<Args...> format, Args&&... args) {
    throw Violation{fmt::format(format, std::forward<Args>(args)...)};
  }

  size_t Rows() const { return static_cast<size_t>(lanes_ * q_blocks_); }
  size_t Row(int64_t lane, int64_t row) const {
    return static_cast<size_t>(lane * q_blocks_ + row);
  }

  void CheckBlocks(const LaneBlocks& item, int64_t blocks, int32_t stage) const {
    if (item.lane < 0 || item.lane >= lanes_ || item.begin < 0 || item.begin >= item.end ||
        item.end > blocks) {
      Fail("stage {}: blocks {} to {} of lane {} do not exist", stage, item.begin, item.end,
           item.lane);
    }
  }

  void CheckTransfer(const Transfer& transfer, int32_t stage, bool is_input) const {
    const int32_t ranks = program_.problem.ranks;
    auto exists = [&](int32_t rank) { return rank >= 0 && rank < ranks; };
    const bool to_home = transfer.cargo == Cargo::kO;
    const bool may_pass = transfer.cargo == Cargo::kKv;
    if (to_home == is_input ||
        (to_home ? transfer.to != kHome || !exists(transfer.from) : !exists(transfer.to)) ||
        (!to_home && transfer.from != kHome && !(may_pass && exists(transfer.from)))) {
      Fail(
          "stage {}: a transfer from rank {} to rank {} is none of home to rank, rank to rank "
          "(K/V), rank to home (output)",
          stage, transfer.from, transfer.to);
    }
    const bool of_keys = transfer.cargo == Cargo::kKv || transfer.cargo == Cargo::kMeans;
    const int64_t blocks = of_keys ? mask_.KvBlocks() : q_blocks_;
    for (const LaneBlocks& item : program_.BlocksOf(transfer.blocks))
      CheckBlocks(item, blocks, stage);
  }

  void ArriveQ(int32_t rank, const LaneBlocks& item) {
    for (int64_t row = item.begin; row < item.end; ++row) q_at_[Row(item.lane, row)] = rank;
  }

  void CheckPassedOn(const Transfer& transfer, const LaneBlocks& item, int32_t stage) {
    for (int64_t block = item.begin; block < item.end; ++block) {
      if (!held_before_.Has(transfer.from, item.lane, block)) {
        Fail(
            "stage {}: rank {} passes K/V block {} of lane {} on to rank {}, but did not hold it "
            "in stage {}",
            stage, transfer.from, block, item.lane, transfer.to, stage - 1);
      }
    }
  }

  void ComputeRow(const Task& task, int64_t lane, int64_t row, int32_t stage) {
    const size_t index = Row(lane, row);
    if (q_at_[index] != task.rank) {
      Fail("lane {} row {}: rank {} computes it in stage {} without its Q", lane, row, task.rank,
           stage);
    }
    if (computed_by_[index] != kNobody && computed_by_[index] != task.rank) {
      Fail("lane {} row {}: rank {} computes a part in stage {}, rank {} has computed another",
           lane, row, task.rank, stage, computed_by_[index]);
    }
    if (returned_in_[index] != kNever) {
      Fail("lane {} row {}: rank {} computes it in stage {}, but its output went home in stage {}",
           lane, row, task.rank, stage, returned_in_[index]);
    }
    computed_by_[index] = task.rank;
    if (masks_.TailOf(lane) == Tail::kMean) CheckMeans(task, lane, row, stage);
    const uint64_t* held = held_.Lane(task.rank, lane);
    uint64_t* done = computed_.MutableRow(lane, row).data();
    ForEachWord(mask_, program_.kv_sets[static_cast<size_t>(task.kv_set)], lane, row,
                [&](int64_t word, uint64_t bits) {
                  if (const uint64_t missing = bits & ~held[word]; missing != 0) {
                    Fail(
                        "lane {} row {}: rank {} computes block {} in stage {} without its K and V",
                        lane, row, task.rank, word * 64 + std::countr_zero(missing), stage);
                  }
                  if (const uint64_t again = bits & done[word]; again != 0) {
                    Fail("lane {} row {}: rank {} computes block {} a second time in stage {}",
                         lane, row, task.rank, word * 64 + std::countr_zero(again), stage);
                  }
                  done[word] |= bits;
                });
  }

  void CheckMeans(const Task& task, int64_t lane, int64_t row, int32_t stage) {
    for (int64_t block = 0; block < mask_.KvBlocks(); ++block) {
      if (mask_.Get(lane, row, block) || means_.Has(task.rank, lane, block)) continue;
      Fail("lane {} row {}: rank {} computes it in stage {} without the means of block {}", lane,
           row, task.rank, stage, block);
    }
  }

  void ReturnRow(int32_t rank, int64_t lane, int64_t row, int32_t stage) {
    const size_t index = Row(lane, row);
    if (returned_in_[index] != kNever) {
      Fail("lane {} row {}: rank {} sends its output home a second time in stage {}", lane, row,
           rank, stage);
    }
    if (computed_by_[index] != rank) {
      Fail("lane {} row {}: rank {} sends its output home in stage {} without having computed it",
           lane, row, rank, stage);
    }
    returned_in_[index] = stage;
  }

  const Program& program_;
  const LaneMasks& masks_;
  const BlockMask& mask_;
  int64_t lanes_, q_blocks_;
  HeldKv held_, held_before_, means_;
  std::vector<int32_t> q_at_, computed_by_, returned_in_;  // [lanes][q_blocks]
  BlockMask computed_;
};

}  // namespace

std::optional<std::string> Validate(const Program& program, const LaneMasks& masks) {
  CheckMaskFits(program.problem, masks.blocks());
  try {
    Walk(program, Validator(program, masks));
  } catch (const Violation& violation) {
    return violation.words;
  }
  return std::nullopt;
}

}  // namespace equitile

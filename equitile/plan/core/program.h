// A Plan made concrete for one mask: what moves in every stage and what is computed there. Pure
// data; walker.h gives its order. Memory: rows + block ranges + one record per transfer and task;
// stages of a ring share the lists they pass on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/range.h"
#include "equitile/pattern/lane_masks.h"
#include "equitile/plan/core/plan.h"

namespace equitile {

// Blocks [begin, end) of one lane, in that lane's order: q blocks for Q, O and rows to compute, kv
// blocks for K and V.
struct LaneBlocks {
  int32_t lane = 0, begin = 0, end = 0;

  Range blocks() const { return {begin, end}; }
  friend bool operator==(const LaneBlocks&, const LaneBlocks&) = default;
};

enum class Cargo : uint8_t {
  kQ,
  kKv,     // K and V of the same blocks
  kO,      // output with its log-sum-exp
  kMeans,  // sums over each block's keys and values, of lanes whose skipped blocks count
           // (Tail::kMean)
};

// Stands for "every rank at which a token of these blocks is at home": each sends (or gets back)
// its part, see HomeMap.
inline constexpr int32_t kHome = -1;

struct Span {
  int64_t first = 0, count = 0;  // into the Program's list of the same name
  friend bool operator==(const Span&, const Span&) = default;
};

struct Transfer {
  Cargo cargo = Cargo::kQ;
  int32_t from = kHome, to = kHome;
  Span blocks;  // Program::blocks
};

// Rows to compute on one rank in one stage: of every row, its kept blocks that are in kv set
// `kv_set`.
struct Task {
  int32_t rank = 0;
  int32_t kv_set = 0;
  Span rows;  // Program::blocks
};

// One masked word of a mask row.
struct WordBits {
  int64_t word = 0;
  uint64_t bits = 0;
};

// A set of kv blocks; word numbers ascend.
using KvSet = std::vector<WordBits>;

struct Stage {
  Span inputs;   // Program::transfers that must have arrived before the stage is computed
  Span tasks;    // Program::tasks
  Span returns;  // Program::transfers of finished O, back to their homes
};

struct Program {
  Problem problem;
  std::vector<Stage> stages;
  std::vector<Transfer> transfers;
  std::vector<Task> tasks;
  std::vector<LaneBlocks> blocks;
  std::vector<KvSet> kv_sets;  // 0 is all kv blocks

  std::span<const Transfer> TransfersOf(Span span) const {
    return std::span(transfers).subspan(static_cast<size_t>(span.first),
                                        static_cast<size_t>(span.count));
  }
  std::span<const Task> TasksOf(Span span) const {
    return std::span(tasks).subspan(static_cast<size_t>(span.first),
                                    static_cast<size_t>(span.count));
  }
  std::span<const LaneBlocks> BlocksOf(Span span) const {
    return std::span(blocks).subspan(static_cast<size_t>(span.first),
                                     static_cast<size_t>(span.count));
  }
};

// `masks` must have the plan's lanes, grid and orders, else InputError.
Program Lower(const Plan& plan, const LaneMasks& masks);

// Throws InputError unless the mask has the problem's lanes and grid, and its orders where they are
// given.
void CheckMaskFits(const Problem& problem, const BlockMask& mask);
void CheckMaskFits(const Problem& problem, const LaneMasks& masks);

}  // namespace equitile

// The order of work of one attention call: which rows are computed together, which first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/kernel/attention/attention.h"

namespace equitile {

// Rows of one lane that keep the same kv blocks: they walk them together.
struct RowTask {
  int32_t slot = 0;  // number of the lane in order of work
  int32_t lane = 0;
  std::span<const int32_t> rows;  // numbers in args.rows
  std::span<const int32_t> kv_blocks;
};

// Lanes by descending cost of their longest row, rows of a lane together and by descending cost. So
// the last rows are small ones and all threads end together, and few lanes are packed at a time.
// Where K and V come packed there is nothing to share and all rows go by descending cost.
// Neighbours in this order that keep the same kv blocks become one task: their keys and values come
// from L3 or from memory once.
class Schedule {
 public:
  Schedule(const AttentionArgs& args, int threads);
  Schedule(const Schedule&) = delete;  // tasks point into it
  Schedule& operator=(const Schedule&) = delete;

  const std::vector<RowTask>& Tasks() const { return tasks_; }
  const std::vector<int64_t>& TasksInSlot() const { return tasks_in_slot_; }
  // How many lanes' packed K and V are kept at a time.
  int64_t Buffers() const { return buffers_; }

 private:
  std::vector<std::vector<int32_t>> Groups() const;
  int64_t Cost(int32_t row) const;
  int64_t RowsTogether(int threads) const;
  bool WalkTogether(int32_t a, int32_t b) const;
  void CountBuffers(int threads);

  const AttentionArgs& args_;
  const AttentionRows& rows_;
  std::vector<int32_t> order_;  // of work, of all rows
  std::vector<RowTask> tasks_;
  std::vector<int64_t> tasks_in_slot_;
  int64_t buffers_ = 0;
};

}  // namespace equitile

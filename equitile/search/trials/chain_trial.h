// What nested masks cost in accuracy, on live queries, keys and values: every size of a ladder is
// computed from the one before it and the blocks that it adds, merged by log-sum-exp, so that a
// whole ladder costs as much as its largest size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/pattern/tail.h"
#include "equitile/search/trials/packed_lanes.h"

namespace equitile {

// Of one lane with one option, against the lane's dense output.
struct OptionError {
  double mse = 0;       // mean over the sampled tokens and head_dim
  double variance = 0;  // of that mean as an estimate for all rows; 0 where all were looked at
  double density = 1;   // of the sampled rows
};

class ChainTrial {
 public:
  // rows: the q blocks that are looked at, ascending, in the order of the lanes. All must outlive
  // it.
  ChainTrial(PackedLanes& lanes, std::span<const int64_t> rows, ThreadPool& pool);

  // Dense attention of the rows: what everything is compared with. Before all else.
  void RunDense();
  // [lanes][rows][kv blocks] shares of the dense rows.
  std::span<const float> masses() const { return masses_; }
  double MeanSquare(int64_t lane) const;  // of the dense output

  // [masks][lanes]; each mask of as many lanes and blocks, and keeping what the one before keeps.
  // Tail::kMean: what a mask does not keep counts by its means.
  std::vector<std::vector<OptionError>> Run(std::span<const BlockMask> nested, Tail tail);

  static int64_t LaneBytes(int64_t tokens, int64_t head_dim);  // of its outputs

 private:
  // Rows of `mask` without what `before` has (null: nothing).
  AttentionRows RowsOf(const BlockMask& mask, const BlockMask* before) const;
  AttentionRows EmptyRows() const;
  void Merge(const LaneOutput& part, LaneOutput& into);
  void CopyRows(const LaneOutput& from, LaneOutput& to);
  void ClearRows(LaneOutput& output);
  std::vector<OptionError> Compare(const LaneOutput& output, const BlockMask& mask);
  // fn(lane, index of the row, its positions)
  void ForEachRow(FunctionRef<void(int64_t lane, int64_t row, Range positions)> fn);
  float* Out(LaneOutput& output, int64_t lane, int64_t position) const;
  const float* Out(const LaneOutput& output, int64_t lane, int64_t position) const;

  PackedLanes& lanes_;
  std::span<const int64_t> rows_;
  ThreadPool& pool_;
  LaneOutput dense_, running_, part_, with_tail_;
  std::vector<float> masses_;
  std::vector<double> squares_;  // [lanes][rows], sums
};

}  // namespace equitile

#include "equitile/search/trials/chain_trial.h"

#include <algorithm>
#include <limits>

#include "equitile/base/error.h"

namespace equitile {
namespace {

// In ascending order, in double: the same sum wherever the row is computed.
double SquaredDistance(const float* a, const float* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return sum;
}

double Square(const float* a, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(a[i]);
  return sum;
}

// Rows are of nearly the same size, so the mean of rows stands for the mean of tokens here.
double VarianceOfMean(std::span<const double> row_means, int64_t all_rows) {
  const auto count = static_cast<double>(row_means.size());
  if (row_means.size() < 2 || std::ssize(row_means) == all_rows) return 0;
  double mean = 0, squares = 0;
  for (double value : row_means) mean += value;
  mean /= count;
  for (double value : row_means) squares += (value - mean) * (value - mean);
  return squares / (count - 1) / count * (1 - count / static_cast<double>(all_rows));
}

}  // namespace

int64_t ChainTrial::LaneBytes(int64_t tokens, int64_t head_dim) {
  return 4 * tokens * (head_dim + 1) * static_cast<int64_t>(sizeof(float));
}

ChainTrial::ChainTrial(PackedLanes& lanes, std::span<const int64_t> rows, ThreadPool& pool)
    : lanes_(lanes),
      rows_(rows),
      pool_(pool),
      dense_(lanes.Output()),
      running_(lanes.Output()),
      part_(lanes.Output()),
      with_tail_(lanes.Output()) {}

float* ChainTrial::Out(LaneOutput& output, int64_t lane, int64_t position) const {
  return output.out.data() + (lane * lanes_.grid().q_tokens + position) * lanes_.head_dim();
}
const float* ChainTrial::Out(const LaneOutput& output, int64_t lane, int64_t position) const {
  return output.out.data() + (lane * lanes_.grid().q_tokens + position) * lanes_.head_dim();
}

void ChainTrial::ForEachRow(FunctionRef<void(int64_t lane, int64_t row, Range positions)> fn) {
  const int64_t count = std::ssize(rows_);
  pool_.ParallelFor(lanes_.lanes().Count() * count, [&](int64_t task, int) {
    const int64_t row = task % count;
    fn(task / count, row, lanes_.grid().QBlockTokens(rows_[static_cast<size_t>(row)]));
  });
}

AttentionRows ChainTrial::RowsOf(const BlockMask& mask, const BlockMask* before) const {
  AttentionRows rows;
  std::vector<int32_t> added;
  for (int64_t lane = 0; lane < lanes_.lanes().Count(); ++lane) {
    for (int64_t q_block : rows_) {
      added.clear();
      mask.ForEachKept(lane, q_block, [&](int64_t kv_block) {
        if (before == nullptr || !before->Get(lane, q_block, kv_block))
          added.push_back(static_cast<int32_t>(kv_block));
      });
      rows.Add(lane, q_block, added);
    }
  }
  return rows;
}

AttentionRows ChainTrial::EmptyRows() const {
  AttentionRows rows;
  for (int64_t lane = 0; lane < lanes_.lanes().Count(); ++lane) {
    for (int64_t q_block : rows_) rows.Add(lane, q_block, {});
  }
  return rows;
}

void ChainTrial::RunDense() {
  const AttentionRows rows = RowsOf(BlockMask::Dense(lanes_.lanes(), lanes_.grid()), nullptr);
  masses_.resize(rows.kv_blocks.size());
  lanes_.Attend(rows, dense_, masses_.data());
  squares_.resize(static_cast<size_t>(rows.Count()));
  ForEachRow([&](int64_t lane, int64_t row, Range positions) {
    squares_[static_cast<size_t>(lane * std::ssize(rows_) + row)] =
        Square(Out(dense_, lane, positions.begin), positions.size() * lanes_.head_dim());
  });
}

double ChainTrial::MeanSquare(int64_t lane) const {
  double sum = 0;
  int64_t tokens = 0;
  for (size_t row = 0; row < rows_.size(); ++row) {
    sum += squares_[static_cast<size_t>(lane) * rows_.size() + row];
    tokens += lanes_.grid().QBlockTokens(rows_[row]).size();
  }
  return sum / static_cast<double>(tokens * lanes_.head_dim());
}

void ChainTrial::Merge(const LaneOutput& part, LaneOutput& into) {
  ForEachRow([&](int64_t lane, int64_t, Range positions) {
    const int64_t at = lane * lanes_.grid().q_tokens + positions.begin;
    MergePartial(Out(into, lane, positions.begin), into.lse.data() + at,
                 Out(part, lane, positions.begin), part.lse.data() + at, positions.size(),
                 lanes_.head_dim());
  });
}

void ChainTrial::CopyRows(const LaneOutput& from, LaneOutput& to) {
  ForEachRow([&](int64_t lane, int64_t, Range positions) {
    const int64_t at = lane * lanes_.grid().q_tokens + positions.begin;
    std::copy_n(Out(from, lane, positions.begin), positions.size() * lanes_.head_dim(),
                Out(to, lane, positions.begin));
    std::copy_n(from.lse.data() + at, positions.size(), to.lse.data() + at);
  });
}

void ChainTrial::ClearRows(LaneOutput& output) {
  ForEachRow([&](int64_t lane, int64_t, Range positions) {
    const int64_t at = lane * lanes_.grid().q_tokens + positions.begin;
    std::fill_n(Out(output, lane, positions.begin), positions.size() * lanes_.head_dim(), 0.0f);
    std::fill_n(output.lse.data() + at, positions.size(), -std::numeric_limits<float>::infinity());
  });
}

std::vector<OptionError> ChainTrial::Compare(const LaneOutput& output, const BlockMask& mask) {
  const size_t count = rows_.size();
  std::vector<double> sums(static_cast<size_t>(lanes_.lanes().Count()) * count);
  ForEachRow([&](int64_t lane, int64_t row, Range positions) {
    sums[static_cast<size_t>(lane) * count + static_cast<size_t>(row)] =
        SquaredDistance(Out(output, lane, positions.begin), Out(dense_, lane, positions.begin),
                        positions.size() * lanes_.head_dim());
  });
  std::vector<OptionError> errors;
  for (int64_t lane = 0; lane < lanes_.lanes().Count(); ++lane) {
    double sum = 0;
    int64_t numbers = 0, kept = 0;
    std::vector<double> row_means;
    for (size_t row = 0; row < count; ++row) {
      const double of_row = sums[static_cast<size_t>(lane) * count + row];
      const int64_t size = lanes_.grid().QBlockTokens(rows_[row]).size() * lanes_.head_dim();
      sum += of_row;
      numbers += size;
      kept += mask.RowCount(lane, rows_[row]);
      row_means.push_back(of_row / static_cast<double>(size));
    }
    errors.push_back(
        {.mse = sum / static_cast<double>(numbers),
         .variance = VarianceOfMean(row_means, lanes_.grid().QBlocks()),
         .density = static_cast<double>(kept) /
                    static_cast<double>(static_cast<int64_t>(count) * mask.KvBlocks())});
  }
  return errors;
}

std::vector<std::vector<OptionError>> ChainTrial::Run(std::span<const BlockMask> nested,
                                                      Tail tail) {
  EQ_CHECK(!squares_.empty(), "nothing to compare with");
  std::vector<std::vector<OptionError>> errors;
  ClearRows(running_);
  const BlockMask* before = nullptr;
  for (const BlockMask& mask : nested) {
    const AttentionRows added = RowsOf(mask, before);
    if (!added.kv_blocks.empty()) {
      lanes_.Attend(added, part_);
      Merge(part_, running_);
    }
    before = &mask;
    if (tail == Tail::kNone) {
      errors.push_back(Compare(running_, mask));
      continue;
    }
    CopyRows(running_, with_tail_);
    lanes_.AttendToMeans(EmptyRows(), mask, part_);
    Merge(part_, with_tail_);
    errors.push_back(Compare(with_tail_, mask));
  }
  return errors;
}

}  // namespace equitile

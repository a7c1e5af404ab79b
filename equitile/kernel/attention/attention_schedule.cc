#include "equitile/kernel/attention/attention_schedule.h"

#include <algorithm>

#include "equitile/kernel/attention/attention_group.h"

namespace equitile {
namespace {

// Query strips that walk their keys and values together, at most; 0003-attention.md has what 4, 8
// and 12 gave.
constexpr int64_t kTogetherStrips = 12;

}  // namespace

Schedule::Schedule(const AttentionArgs& args, int threads) : args_(args), rows_(*args.rows) {
  const std::vector<std::vector<int32_t>> groups = Groups();
  for (const auto& group : groups) order_.insert(order_.end(), group.begin(), group.end());
  const int64_t together = RowsTogether(threads);
  const int32_t* row = order_.data();
  for (const auto& group : groups) {
    const size_t before = tasks_.size();
    for (size_t i = 0, count; i < group.size(); i += count, row += count) {
      count = 1;
      while (static_cast<int64_t>(count) < together && i + count < group.size() &&
             WalkTogether(group[i], group[i + count]))
        ++count;
      tasks_.push_back({.slot = static_cast<int32_t>(tasks_in_slot_.size()),
                        .lane = rows_.rows[static_cast<size_t>(group[i])].lane,
                        .rows = {row, count},
                        .kv_blocks = rows_.KvBlocks(group[i])});
    }
    tasks_in_slot_.push_back(static_cast<int64_t>(tasks_.size() - before));
  }
  CountBuffers(threads);
}

// Rows in order of work, those of a slot together.
std::vector<std::vector<int32_t>> Schedule::Groups() const {
  const bool by_lane = !args_.k.IsStrips() || !args_.v.IsStrips();
  std::vector<std::vector<int32_t>> groups(by_lane ? static_cast<size_t>(args_.lanes.Count()) : 1);
  for (int32_t row = 0; row < rows_.Count(); ++row) {
    groups[by_lane ? static_cast<size_t>(rows_.rows[static_cast<size_t>(row)].lane) : 0].push_back(
        row);
  }
  std::erase_if(groups, [](const auto& group) { return group.empty(); });
  for (auto& group : groups) {
    std::stable_sort(group.begin(), group.end(),
                     [&](int32_t a, int32_t b) { return Cost(a) > Cost(b); });
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [&](const auto& a, const auto& b) { return Cost(a[0]) > Cost(b[0]); });
  return groups;
}

// Keys, and means.
int64_t Schedule::Cost(int32_t row) const {
  const auto kept = static_cast<int64_t>(rows_.KvBlocks(row).size());
  const bool tail = args_.tails.Has(rows_.rows[static_cast<size_t>(row)].lane);
  return kept * args_.grid.block_tokens + (tail ? args_.grid.KvBlocks() - kept : 0);
}

// How many rows may be one task: those of kTogetherStrips, but not so many that the last tasks of
// the threads end far apart.
int64_t Schedule::RowsTogether(int threads) const {
  constexpr int64_t kTasksPerThread = 16;
  const int64_t strips = std::min(kTogetherStrips, GroupStrips(args_.head_dim));
  return std::max<int64_t>(1, std::min(strips * kStripTokens / args_.grid.block_tokens,
                                       rows_.Count() / (kTasksPerThread * threads)));
}

bool Schedule::WalkTogether(int32_t a, int32_t b) const {
  const AttentionRows::Row row_a = rows_.rows[static_cast<size_t>(a)],
                           row_b = rows_.rows[static_cast<size_t>(b)];
  return row_a.lane == row_b.lane && std::ranges::equal(rows_.KvBlocks(a), rows_.KvBlocks(b)) &&
         (args_.tails.kept == nullptr ||
          std::ranges::equal(args_.tails.kept->Row(row_a.lane, row_a.q_block),
                             args_.tails.kept->Row(row_b.lane, row_b.q_block)));
}

// The threads are at no more than 2 * threads consecutive tasks (one at work, one claimed); the
// lanes of these, and one more, so that nobody waits for the last row of a lane.
void Schedule::CountBuffers(int threads) {
  const auto slots = static_cast<int64_t>(tasks_in_slot_.size());
  int64_t widest = 1;
  for (size_t i = 0, j = 0; i < tasks_.size(); ++i) {
    while (i - j >= static_cast<size_t>(2 * threads)) ++j;
    widest = std::max<int64_t>(widest, tasks_[i].slot - tasks_[j].slot + 1);
  }
  buffers_ = std::min(slots, widest + 1);
}

}  // namespace equitile

// The means that stand for skipped blocks, within one attention call: made where the caller did not
// bring them, and read chunk by chunk as if they were keys and values.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "equitile/kernel/attention/attention.h"
#include "equitile/kernel/attention/attention_group.h"
#include "equitile/kernel/attention/attention_progress.h"
#include "equitile/kernel/attention/attention_schedule.h"

namespace equitile {

class TailMeans {
 public:
  TailMeans(const AttentionArgs& args, Progress& progress);

  // Memory that it needs, of the call and of each thread.
  int64_t SharedBytes() const;
  int64_t ThreadBytes() const;
  void Place(std::byte* shared);

  // On every thread: makes means, block by block, and returns when all of them are there.
  void Make(int thread);

  // The blocks that the task's rows skip and attend to by their means.
  void ListSkipped(const RowTask& task, std::vector<int32_t>& skipped) const;
  const LaneMeans& Of(int64_t lane) const {
    return (made_.empty() ? args_.tails.means : std::span(made_))[static_cast<size_t>(lane)];
  }

 private:
  void MakeBlock(int64_t lane, int64_t kv_block) const;

  const AttentionArgs& args_;
  Progress& progress_;
  std::vector<int32_t> lanes_;   // whose means the call makes
  std::vector<LaneMeans> made_;  // [lanes], of these
  std::atomic<int64_t> next_{0}, done_{0};
};

// Skipped blocks, chunk by chunk: their means side by side in strips of the thread's own. Only
// theirs: no time goes into means that do not count, and nothing that is in them reaches the row.
class MeansReader {
 public:
  // scratch: TailMeans::ThreadBytes.
  MeansReader(const AttentionArgs& args, int64_t lane, const LaneMeans& means,
              std::span<const int32_t> skipped, std::byte* scratch);
  MeansReader(const MeansReader&) = delete;  // chunks point into it
  MeansReader& operator=(const MeansReader&) = delete;

  Chunk Next();  // empty at the end; valid until the next one

 private:
  void Copy(int64_t block, int64_t to);
  void CopyRow(const float* from, std::byte* strips, int64_t to) const;
  void Center(int64_t to);
  float* TokenAt(std::byte* strips, int64_t to) const;

  const AttentionArgs& args_;
  const LaneMeans& means_;
  const float* const center_;  // null: none
  const std::span<const int32_t> skipped_;
  const int64_t pitch_;  // bytes
  std::byte *const k_, *const v_;
  const float log2_full_, log2_last_;  // of the tokens of a block, of the last one
  int64_t next_ = 0;
  float log2_count_[kChunkStrips * kStripTokens];
};

}  // namespace equitile

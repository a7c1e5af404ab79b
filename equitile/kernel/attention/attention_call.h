// One attention call at work: deals tasks to threads and walks each task's keys and values chunk by
// chunk. Nothing below it calls back.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "equitile/kernel/attention/attention.h"
#include "equitile/kernel/attention/attention_group.h"
#include "equitile/kernel/attention/attention_kv.h"
#include "equitile/kernel/attention/attention_progress.h"
#include "equitile/kernel/attention/attention_schedule.h"
#include "equitile/kernel/attention/attention_tails.h"
#include "equitile/kernel/workspace.h"

namespace equitile {

class AttentionCall {
 public:
  AttentionCall(const AttentionArgs& args, int threads, Workspace& workspace);

  // Once on each thread.
  void Run(int thread);

 private:
  // What belongs to one thread.
  struct Thread {
    std::byte *group = nullptr, *means = nullptr;  // GroupMemory::Bytes, TailMeans::ThreadBytes
    NextReads next;
    std::vector<int32_t> skipped;  // blocks of its task
  };

  void Work(int thread);
  void Compute(const RowTask& task, const RowTask* next, int thread);
  void WalkKept(QueryGroup& group, const RowTask& task, const RowTask* next, bool last, int thread);
  void WalkMeans(QueryGroup& group, int thread);
  void AddQueriesAndOutput(const RowTask& task, NextReads& reads) const;

  const AttentionArgs& args_;
  Progress progress_;
  const Schedule schedule_;
  PackedKv kv_;
  TailMeans tails_;
  std::vector<Thread> threads_;
  std::atomic<int64_t> next_task_;
  std::atomic<int> working_;  // threads that are not done
};

}  // namespace equitile

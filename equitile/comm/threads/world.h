// What the ranks of one process share.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "equitile/comm/comm_error.h"
#include "equitile/comm/mailbox.h"

namespace equitile::threads {

enum class CollectiveKind : uint8_t { kBarrier, kReduceDouble, kReduceUint64, kBroadcast };

// One rank's part in a collective call; ranks must agree on all but the pointer.
struct CollectivePart {
  CollectiveKind kind = CollectiveKind::kBarrier;
  Reduce op = Reduce::kSum;
  int32_t root = 0;
  size_t count = 0;      // numbers, or bytes of a broadcast
  void* data = nullptr;  // [count], in and out
};

// Wakes a rank that waits; shared flags are read under its mutex.
struct Bell {
  std::mutex mutex;
  std::condition_variable rung;

  void Ring() {
    { const std::lock_guard lock(mutex); }
    rung.notify_all();
  }
};

struct RankState {
  Mailbox mailbox;
  Bell bell;
  std::atomic<double> heard{0};
  std::atomic<bool> ended{false};
  std::atomic<int32_t> step{-1}, layer{-1}, stage{-1};

  Place LastPlace() const { return {step, layer, stage}; }
};

// Thread-safe.
class World {
 public:
  explicit World(int32_t ranks);

  int32_t size() const { return static_cast<int32_t>(ranks_.size()); }
  RankState& At(int32_t rank) { return *ranks_[static_cast<size_t>(rank)]; }

  // The first one stays; wakes everybody.
  void Fail(RankFailure failure);
  bool Failed() const { return failed_.load(std::memory_order_acquire); }
  RankFailure Failure() const;
  // The rank's body has returned; wakes those who would wait for it.
  void End(int32_t rank);

  // Deposits this rank's part; the last rank to come does the work for all, in rank order, so that
  // sums do not depend on who comes when. Returns the ticket to wait for.
  uint64_t Enter(int32_t rank, const CollectivePart& part);
  bool Completed(uint64_t ticket) const {
    return completed_.load(std::memory_order_acquire) >= ticket;
  }
  // After this nobody touches the rank's part, which was not completed.
  void Leave(int32_t rank);

 private:
  void CheckAgreement(int32_t rank, const CollectivePart& part);

  std::vector<std::unique_ptr<RankState>> ranks_;
  std::atomic<bool> failed_{false};
  mutable std::mutex failure_mutex_;
  std::optional<RankFailure> failure_;

  std::mutex collective_mutex_;
  std::vector<std::optional<CollectivePart>> parts_;  // [rank]
  int32_t arrived_ = 0;
  std::atomic<uint64_t> completed_{0};
};

}  // namespace equitile::threads

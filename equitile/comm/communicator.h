// How ranks talk: the one interface behind which a single rank, ranks as threads of one process,
// and MPI (also inside a simulator) look the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "equitile/base/function_ref.h"
#include "equitile/comm/comm_error.h"

namespace equitile {

enum class Reduce : uint8_t { kSum, kMin, kMax };

// A transfer under way; made by Send and Receive, spent by Test or Wait. Inactive: done.
struct CommRequest {
  int64_t id = -1;
  bool Active() const { return id >= 0; }
};

// All calls come from the rank's one calling thread, never from its pool. Where another rank has
// failed, any call that would wait throws CommError instead, naming that rank and its reason:
// nobody waits for the dead.
class Communicator {
 public:
  static constexpr int32_t kMaxTag = 999'999;  // the least of the MPIs we know

  virtual ~Communicator() = default;

  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;
  virtual std::string_view name() const = 0;  // "solo", "threads", "mpi"
  virtual bool simulated() const { return false; }
  // [ranks] who shares a machine, counted from 0 in the order of their first ranks.
  virtual std::vector<int32_t> NodeOf() const {
    return std::vector<int32_t>(static_cast<size_t>(size()), 0);
  }

  // --- Local ---
  // Bytes must stay untouched (Send) or unread (Receive) until the request is done, and in place
  // until then or until a CommError or Abort has ended it: where another exception may fly past
  // transfers under way, AbortOnError (below) is put between it and their buffers. Messages between
  // two ranks with the same tag arrive in the order in which they were sent; sizes must agree on
  // both sides (CommError otherwise). Any size, also 0 and above 2 GiB; tags from 0 to kMaxTag.
  CommRequest Send(std::span<const std::byte> bytes, int32_t to, int32_t tag) {
    if (to != rank()) bytes_sent_ += static_cast<int64_t>(bytes.size());
    return DoSend(bytes, to, tag);
  }
  virtual CommRequest Receive(std::span<std::byte> bytes, int32_t from, int32_t tag) = 0;
  // True once the transfer is done; the request is spent then. An inactive request is done.
  virtual bool Test(CommRequest& request) = 0;
  virtual void Wait(CommRequest& request) = 0;
  // Makes progress on whatever is under way and notices failed ranks; cheap enough for every
  // millisecond. The kernels' `poll` calls it.
  virtual void Poll() = 0;

  // Where this rank is, for messages about it: sent along with its heartbeat.
  virtual void SetPlace(int32_t step, int32_t layer, int32_t stage) = 0;

  // Seconds on the rank's own clock (the simulated one in a simulator).
  virtual double Now() const = 0;
  // In a simulator that was told to model compute rather than to measure it (models_compute):
  // this much work is done, on a rank of nominal speed. Elsewhere nothing.
  virtual bool models_compute() const { return false; }
  virtual void Elapse(double /*seconds*/) {}

  // Tells all ranks to stop, with this rank, its place and the reason; they throw CommError from
  // whatever call they are in, or make next. Returns; the caller throws its own error afterwards.
  // The first failure of a job is the one that is told.
  virtual void Abort(std::string_view reason, FailureKind kind = FailureKind::kFailed) = 0;

  // --- Collective: every rank calls, in the same order ---
  virtual void Barrier() = 0;
  virtual void AllReduce(std::span<double> values, Reduce op) = 0;
  virtual void AllReduce(std::span<uint64_t> values, Reduce op) = 0;
  virtual void Broadcast(std::span<std::byte> bytes, int32_t root) = 0;

  // Given to Send for other ranks, so far; what collective calls exchange is not known.
  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  virtual CommRequest DoSend(std::span<const std::byte> bytes, int32_t to, int32_t tag) = 0;

  int64_t bytes_sent_ = 0;
};

// Runs work whose transfers use buffers that live outside of it: an exception of this rank becomes
// Abort, and then goes on. Local.
void AbortOnError(Communicator& comm, FunctionRef<void()> work);

}  // namespace equitile

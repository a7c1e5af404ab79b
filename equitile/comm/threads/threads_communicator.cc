#include "equitile/comm/threads/threads_communicator.h"

#include <chrono>
#include <thread>
#include <utility>

#include "equitile/base/timer.h"

namespace equitile::threads {
namespace {

// Handing the core to another rank so many times costs less than sleeping; with more ranks than
// cores the one that is waited for gets to run.
constexpr int kYields = 32;

}  // namespace

ThreadsCommunicator::ThreadsCommunicator(World& world, int32_t rank, double watchdog_seconds)
    : world_(world), rank_(rank), watchdog_(watchdog_seconds, Now()) {}

CommRequest ThreadsCommunicator::DoSend(std::span<const std::byte> bytes, int32_t to, int32_t tag) {
  return Post(Message::Sending(bytes, rank_, to), rank_, to, tag);
}

CommRequest ThreadsCommunicator::Receive(std::span<std::byte> bytes, int32_t from, int32_t tag) {
  return Post(Message::Receiving(bytes, rank_, from), from, rank_, tag);
}

CommRequest ThreadsCommunicator::Post(std::shared_ptr<Message> message, int32_t from, int32_t to,
                                      int32_t tag) {
  Poll();
  EQ_CHECK(from >= 0 && from < size() && to >= 0 && to < size(), "from {} to {} of {} ranks", from,
           to, size());
  EQ_CHECK(tag >= 0 && tag <= kMaxTag, "tag {}", tag);
  const size_t bytes = message->Bytes();
  Mailbox::Posted posted = world_.At(to).mailbox.Post(std::move(message), from, tag);
  if (posted.sizes_differ) {
    FailHere(
        fmt::format("[comm] message from rank {} to rank {} with tag {}: {} bytes here, {} "
                    "on the other side",
                    from, to, tag, bytes, posted.other_bytes));
    ThrowFailure();
  }
  if (posted.waiting) return requests_.Add(std::move(posted.waiting));
  if (posted.met->owner != rank_) world_.At(posted.met->owner).bell.Ring();
  return {};
}

bool ThreadsCommunicator::Test(CommRequest& request) {
  Poll();
  if (!request.Active()) return true;
  if (!requests_.At(request)->done.load(std::memory_order_acquire)) return false;
  requests_.Spend(request);
  return true;
}

void ThreadsCommunicator::Wait(CommRequest& request) {
  if (Test(request)) return;
  const Message& message = *requests_.At(request);
  WaitFor(message.peer, [&message] { return message.done.load(std::memory_order_acquire); });
  requests_.Spend(request);
}

void ThreadsCommunicator::Poll() {
  if (world_.Failed()) ThrowFailure();
  SignOfLife();
  if (world_.Failed()) ThrowFailure();
}

void ThreadsCommunicator::SetPlace(int32_t step, int32_t layer, int32_t stage) {
  RankState& state = world_.At(rank_);
  state.step.store(step, std::memory_order_relaxed);
  state.layer.store(layer, std::memory_order_relaxed);
  state.stage.store(stage, std::memory_order_relaxed);
}

double ThreadsCommunicator::Now() const { return NowSeconds(); }

void ThreadsCommunicator::Abort(std::string_view reason, FailureKind kind) {
  world_.Fail({rank_, world_.At(rank_).LastPlace(), kind, std::string(reason)});
  WithdrawAll();
}

void ThreadsCommunicator::Barrier() { Collective({}); }

void ThreadsCommunicator::AllReduce(std::span<double> values, Reduce op) {
  Collective({.kind = CollectiveKind::kReduceDouble,
              .op = op,
              .count = values.size(),
              .data = values.data()});
}

void ThreadsCommunicator::AllReduce(std::span<uint64_t> values, Reduce op) {
  Collective({.kind = CollectiveKind::kReduceUint64,
              .op = op,
              .count = values.size(),
              .data = values.data()});
}

void ThreadsCommunicator::Broadcast(std::span<std::byte> bytes, int32_t root) {
  EQ_CHECK(root >= 0 && root < size(), "root {} of {} ranks", root, size());
  Collective({.kind = CollectiveKind::kBroadcast,
              .root = root,
              .count = bytes.size(),
              .data = bytes.data()});
}

void ThreadsCommunicator::Collective(const CollectivePart& part) {
  Poll();
  const uint64_t ticket = world_.Enter(rank_, part);
  WaitFor(-1, [&] { return world_.Completed(ticket); });
}

void ThreadsCommunicator::WaitFor(int32_t needed, FunctionRef<bool()> condition) {
  for (int i = 0; i < kYields; ++i) {
    if (condition()) return;
    std::this_thread::yield();
  }
  Bell& bell = world_.At(rank_).bell;
  const auto interval = std::chrono::duration<double>(watchdog_.On() ? watchdog_.Interval() : 60.0);
  while (!condition()) {
    if (world_.Failed()) ThrowFailure();
    SignOfLife();
    if (const int32_t ended = EndedRank(needed); ended >= 0 && !condition()) {
      FailHere(fmt::format("[comm] waits for rank {}, which has ended", ended));
    }
    std::unique_lock lock(bell.mutex);
    bell.rung.wait_for(lock, interval,
                       [&] { return condition() || world_.Failed() || EndedRank(needed) >= 0; });
  }
}

int32_t ThreadsCommunicator::EndedRank(int32_t needed) const {
  if (needed >= 0) return world_.At(needed).ended ? needed : -1;
  for (int32_t r = 0; r < size(); ++r) {
    if (world_.At(r).ended) return r;
  }
  return -1;
}

void ThreadsCommunicator::SignOfLife() {
  if (!watchdog_.On()) return;
  const double now = Now();
  world_.At(rank_).heard.store(now, std::memory_order_relaxed);
  if (watchdog_.Due(now)) LookAround(now);
}

void ThreadsCommunicator::LookAround(double now) {
  for (int32_t r = 0; r < size(); ++r) {
    RankState& other = world_.At(r);
    if (other.ended || !watchdog_.Missing(other.heard, now)) continue;
    world_.Fail({r, other.LastPlace(), FailureKind::kLost,
                 fmt::format("[comm] no sign of life for {:.3g} s (noticed by rank {})",
                             watchdog_.limit(), rank_)});
    return;
  }
}

void ThreadsCommunicator::ThrowFailure() {
  WithdrawAll();
  throw CommError(world_.Failure());
}

void ThreadsCommunicator::FailHere(std::string cause) {
  world_.Fail({rank_, world_.At(rank_).LastPlace(), FailureKind::kFailed, std::move(cause)});
}

void ThreadsCommunicator::WithdrawAll() {
  for (const auto& message : requests_.Active()) world_.At(message->to).mailbox.Withdraw(message);
  requests_.Clear();
  world_.Leave(rank_);
}

}  // namespace equitile::threads

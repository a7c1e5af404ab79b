// One rank among threads of one process.
#pragma once

#include "equitile/base/function_ref.h"
#include "equitile/comm/communicator.h"
#include "equitile/comm/threads/world.h"
#include "equitile/comm/watchdog.h"

namespace equitile::threads {

class ThreadsCommunicator final : public Communicator {
 public:
  ThreadsCommunicator(World& world, int32_t rank, double watchdog_seconds);

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return world_.size(); }
  std::string_view name() const override { return "threads"; }

  CommRequest Receive(std::span<std::byte> bytes, int32_t from, int32_t tag) override;
  bool Test(CommRequest& request) override;
  void Wait(CommRequest& request) override;
  void Poll() override;
  void SetPlace(int32_t step, int32_t layer, int32_t stage) override;
  double Now() const override;
  void Abort(std::string_view reason, FailureKind kind) override;
  void Barrier() override;
  void AllReduce(std::span<double> values, Reduce op) override;
  void AllReduce(std::span<uint64_t> values, Reduce op) override;
  void Broadcast(std::span<std::byte> bytes, int32_t root) override;

  // After this no other rank touches bytes that this one has given to Send or Receive.
  void WithdrawAll();

 private:
  CommRequest DoSend(std::span<const std::byte> bytes, int32_t to, int32_t tag) override;
  CommRequest Post(std::shared_ptr<Message> message, int32_t from, int32_t to, int32_t tag);
  void Collective(const CollectivePart& part);
  // Sleeps until the condition holds; throws when a rank has failed, or has ended though this wait
  // needs it (`needed`; all ranks where it is -1).
  void WaitFor(int32_t needed, FunctionRef<bool()> condition);
  void SignOfLife();
  void LookAround(double now);
  [[noreturn]] void ThrowFailure();
  void FailHere(std::string cause);
  int32_t EndedRank(int32_t needed) const;

  World& world_;
  int32_t rank_;
  RequestTable requests_;
  Watchdog watchdog_;
};

}  // namespace equitile::threads

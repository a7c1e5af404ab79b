// One rank by itself: messages to itself are copies, and nothing else costs anything.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "equitile/comm/communicator.h"
#include "equitile/comm/mailbox.h"

namespace equitile {

class SoloCommunicator final : public Communicator {
 public:
  int32_t rank() const override { return 0; }
  int32_t size() const override { return 1; }
  std::string_view name() const override { return "solo"; }

  CommRequest Receive(std::span<std::byte> bytes, int32_t from, int32_t tag) override;
  bool Test(CommRequest& request) override;
  void Wait(CommRequest& request) override;
  void Poll() override;
  void SetPlace(int32_t step, int32_t layer, int32_t stage) override;
  double Now() const override;
  void Abort(std::string_view reason, FailureKind kind) override;
  void Barrier() override { Poll(); }
  void AllReduce(std::span<double>, Reduce) override { Poll(); }
  void AllReduce(std::span<uint64_t>, Reduce) override { Poll(); }
  void Broadcast(std::span<std::byte> bytes, int32_t root) override;

 private:
  CommRequest DoSend(std::span<const std::byte> bytes, int32_t to, int32_t tag) override;
  CommRequest Post(std::shared_ptr<Message> message, int32_t other, int32_t tag);
  [[noreturn]] void Fail(std::string cause);

  Mailbox mailbox_;
  RequestTable requests_;
  Place place_;
  std::optional<RankFailure> failure_;
};

}  // namespace equitile

#include "equitile/comm/solo/solo.h"

#include <utility>

#include "equitile/base/timer.h"

namespace equitile {

CommRequest SoloCommunicator::DoSend(std::span<const std::byte> bytes, int32_t to, int32_t tag) {
  return Post(Message::Sending(bytes, 0, to), to, tag);
}

CommRequest SoloCommunicator::Receive(std::span<std::byte> bytes, int32_t from, int32_t tag) {
  return Post(Message::Receiving(bytes, 0, from), from, tag);
}

CommRequest SoloCommunicator::Post(std::shared_ptr<Message> message, int32_t other, int32_t tag) {
  Poll();
  EQ_CHECK(other == 0, "rank {} of 1", other);
  EQ_CHECK(tag >= 0 && tag <= kMaxTag, "tag {}", tag);
  const size_t bytes = message->Bytes();
  Mailbox::Posted posted = mailbox_.Post(std::move(message), 0, tag);
  if (posted.sizes_differ) {
    Fail(fmt::format("[comm] message with tag {}: {} bytes on one side, {} on the other", tag,
                     posted.other_bytes, bytes));
  }
  return posted.waiting ? requests_.Add(std::move(posted.waiting)) : CommRequest{};
}

bool SoloCommunicator::Test(CommRequest& request) {
  Poll();
  if (!request.Active()) return true;
  if (!requests_.At(request)->done) return false;
  requests_.Spend(request);
  return true;
}

void SoloCommunicator::Wait(CommRequest& request) {
  if (!Test(request)) Fail("[comm] waits for a message that only it could send");
}

void SoloCommunicator::Poll() {
  if (failure_) throw CommError(*failure_);
}

void SoloCommunicator::SetPlace(int32_t step, int32_t layer, int32_t stage) {
  place_ = {step, layer, stage};
}

double SoloCommunicator::Now() const { return NowSeconds(); }

void SoloCommunicator::Abort(std::string_view reason, FailureKind kind) {
  if (!failure_) failure_ = {0, place_, kind, std::string(reason)};
}

void SoloCommunicator::Broadcast(std::span<std::byte>, int32_t root) {
  Poll();
  EQ_CHECK(root == 0, "root {} of 1", root);
}

void SoloCommunicator::Fail(std::string cause) {
  Abort(cause, FailureKind::kFailed);
  throw CommError(*failure_);
}

}  // namespace equitile

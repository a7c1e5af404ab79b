#include "equitile/comm/mailbox.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "equitile/base/error.h"

namespace equitile {
namespace {

void Copy(const Message& one, const Message& other) {
  const Message& send = one.is_send ? one : other;
  const Message& receive = one.is_send ? other : one;
  if (!send.source.empty()) {
    std::memmove(receive.target.data(), send.source.data(), send.source.size());
  }
}

}  // namespace

std::shared_ptr<Message> Message::Sending(std::span<const std::byte> bytes, int32_t owner,
                                          int32_t to) {
  auto message = std::make_shared<Message>();
  message->owner = owner;
  message->to = to;
  message->peer = to;
  message->source = bytes;
  message->is_send = true;
  return message;
}

std::shared_ptr<Message> Message::Receiving(std::span<std::byte> bytes, int32_t owner,
                                            int32_t from) {
  auto message = std::make_shared<Message>();
  message->owner = owner;
  message->to = owner;
  message->peer = from;
  message->target = bytes;
  return message;
}

Mailbox::Posted Mailbox::Post(std::shared_ptr<Message> message, int32_t from, int32_t tag) {
  std::shared_ptr<Message> other;
  {
    const std::lock_guard lock(mutex_);
    auto& queue = queues_[{from, tag}];
    if (queue.empty() || queue.front()->is_send == message->is_send) {
      queue.push_back(message);
      return {.waiting = std::move(message), .met = nullptr};
    }
    other = queue.front();
    if (other->Bytes() != message->Bytes()) {
      return {
          .waiting = nullptr, .met = nullptr, .sizes_differ = true, .other_bytes = other->Bytes()};
    }
    queue.pop_front();
    if (queue.empty()) queues_.erase({from, tag});
  }
  Copy(*message, *other);
  other->done.store(true, std::memory_order_release);
  return {.waiting = nullptr, .met = std::move(other)};
}

void Mailbox::Withdraw(const std::shared_ptr<Message>& message) {
  {
    const std::lock_guard lock(mutex_);
    for (auto it = queues_.begin(); it != queues_.end(); ++it) {
      if (std::erase(it->second, message) == 0) continue;
      if (it->second.empty()) queues_.erase(it);
      return;
    }
  }
  while (!message->done.load(std::memory_order_acquire)) std::this_thread::yield();
}

CommRequest RequestTable::Add(std::shared_ptr<Message> message) {
  if (free_.empty()) {
    slots_.push_back(std::move(message));
    return {static_cast<int64_t>(slots_.size()) - 1};
  }
  const int64_t slot = free_.back();
  free_.pop_back();
  slots_[static_cast<size_t>(slot)] = std::move(message);
  return {slot};
}

const std::shared_ptr<Message>& RequestTable::At(CommRequest request) const {
  EQ_CHECK(request.id < static_cast<int64_t>(slots_.size()), "request {}", request.id);
  const auto& message = slots_[static_cast<size_t>(request.id)];
  EQ_CHECK(message != nullptr, "request {} was spent before", request.id);
  return message;
}

void RequestTable::Spend(CommRequest& request) {
  slots_[static_cast<size_t>(request.id)].reset();
  free_.push_back(request.id);
  request = {};
}

std::vector<std::shared_ptr<Message>> RequestTable::Active() const {
  std::vector<std::shared_ptr<Message>> active;
  std::copy_if(slots_.begin(), slots_.end(), std::back_inserter(active),
               [](const auto& message) { return message != nullptr; });
  return active;
}

void RequestTable::Clear() {
  slots_.clear();
  free_.clear();
}

}  // namespace equitile

// Messages between ranks of one process: matched by sender and tag, copied once, straight from the
// sender's bytes to the receiver's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "equitile/comm/communicator.h"

namespace equitile {

// One side of a message that waits for the other side.
struct Message {
  int32_t owner = -1;  // the rank that posted it
  int32_t to = -1;
  int32_t peer = -1;                  // the rank on the other side
  std::span<const std::byte> source;  // of a send
  std::span<std::byte> target;        // of a receive
  bool is_send = false;
  std::atomic<bool> done{false};

  static std::shared_ptr<Message> Sending(std::span<const std::byte> bytes, int32_t owner,
                                          int32_t to);
  static std::shared_ptr<Message> Receiving(std::span<std::byte> bytes, int32_t owner,
                                            int32_t from);
  size_t Bytes() const { return is_send ? source.size() : target.size(); }
};

// What one rank receives. Whoever comes second copies: into the receiver's bytes if they are
// posted, out of the sender's if they are not. Thread-safe.
class Mailbox {
 public:
  struct Posted {
    std::shared_ptr<Message> waiting;  // set: the other side is not there yet
    std::shared_ptr<Message> met;      // set: copied; its owner is to be woken
    bool sizes_differ = false;         // nothing was copied, nobody is done
    size_t other_bytes = 0;
  };
  Posted Post(std::shared_ptr<Message> message, int32_t from, int32_t tag);

  // After this nobody touches the message's bytes: it is taken out, or its copy has ended.
  void Withdraw(const std::shared_ptr<Message>& message);

 private:
  std::mutex mutex_;
  // Each queue holds only sends or only receives.
  std::map<std::pair<int32_t, int32_t>, std::deque<std::shared_ptr<Message>>> queues_;
};

// The messages that a rank's requests stand for.
class RequestTable {
 public:
  CommRequest Add(std::shared_ptr<Message> message);
  const std::shared_ptr<Message>& At(CommRequest request) const;
  void Spend(CommRequest& request);
  // All that are under way.
  std::vector<std::shared_ptr<Message>> Active() const;
  void Clear();

 private:
  std::vector<std::shared_ptr<Message>> slots_;
  std::vector<int64_t> free_;
};

}  // namespace equitile

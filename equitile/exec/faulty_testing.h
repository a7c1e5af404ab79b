// A communicator that is not to be trusted: it hands everything on, but spoils one message. For
// tests of whatever claims to notice.
#pragma once

#include <cstring>
#include <deque>
#include <vector>

#include "equitile/comm/communicator.h"

namespace equitile::testing {

enum class Fault { kNone, kDropTile, kSwapTiles, kAlterValue };

class FaultyCommunicator final : public Communicator {
 public:
  // Spoils the `message`th message that this rank sends; tiles of `tile_bytes`.
  FaultyCommunicator(Communicator& comm, Fault fault, int64_t message, size_t tile_bytes)
      : comm_(comm), fault_(fault), message_(message), tile_bytes_(tile_bytes) {}

  bool Struck() const { return struck_; }

  int32_t rank() const override { return comm_.rank(); }
  int32_t size() const override { return comm_.size(); }
  std::string_view name() const override { return comm_.name(); }
  CommRequest Receive(std::span<std::byte> bytes, int32_t from, int32_t tag) override {
    return comm_.Receive(bytes, from, tag);
  }
  bool Test(CommRequest& request) override { return comm_.Test(request); }
  void Wait(CommRequest& request) override { comm_.Wait(request); }
  void Poll() override { comm_.Poll(); }
  void SetPlace(int32_t step, int32_t layer, int32_t stage) override {
    comm_.SetPlace(step, layer, stage);
  }
  double Now() const override { return comm_.Now(); }
  void Abort(std::string_view reason, FailureKind kind) override { comm_.Abort(reason, kind); }
  void Barrier() override { comm_.Barrier(); }
  void AllReduce(std::span<double> values, Reduce op) override { comm_.AllReduce(values, op); }
  void AllReduce(std::span<uint64_t> values, Reduce op) override { comm_.AllReduce(values, op); }
  void Broadcast(std::span<std::byte> bytes, int32_t root) override {
    comm_.Broadcast(bytes, root);
  }

 private:
  CommRequest DoSend(std::span<const std::byte> bytes, int32_t to, int32_t tag) override {
    if (message_-- == 0 && fault_ != Fault::kNone && bytes.size() >= 2 * tile_bytes_) {
      struck_ = true;
      return comm_.Send(Spoiled(bytes), to, tag);
    }
    return comm_.Send(bytes, to, tag);
  }

  std::span<const std::byte> Spoiled(std::span<const std::byte> bytes) {
    std::vector<std::byte>& copy = kept_.emplace_back(bytes.begin(), bytes.end());
    switch (fault_) {
      case Fault::kNone:
        break;
      case Fault::kDropTile:
        std::memset(copy.data(), 0, tile_bytes_);
        break;
      case Fault::kSwapTiles:
        std::swap_ranges(copy.begin(), copy.begin() + static_cast<std::ptrdiff_t>(tile_bytes_),
                         copy.begin() + static_cast<std::ptrdiff_t>(tile_bytes_));
        break;
      case Fault::kAlterValue: {
        float value;
        std::memcpy(&value, copy.data(), sizeof(value));
        value = value * 1.5f + 0.25f;
        std::memcpy(copy.data(), &value, sizeof(value));
        break;
      }
    }
    return copy;
  }

  Communicator& comm_;
  Fault fault_;
  int64_t message_;
  size_t tile_bytes_;
  bool struck_ = false;
  std::deque<std::vector<std::byte>> kept_;
};

}  // namespace equitile::testing

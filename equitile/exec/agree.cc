#include "equitile/exec/agree.h"

#include <cstring>
#include <string>
#include <vector>

#include "equitile/base/error.h"

namespace equitile {
namespace {

// Numbers and words one after the other, as bytes; written and read by the same function, so that
// both sides agree on the order. Ranks of one job are one program on alike machines.
class Bytes {
 public:
  explicit Bytes(std::vector<std::byte>* out) : out_(out) {}
  explicit Bytes(std::span<const std::byte> in) : in_(in) {}

  template <typename T>
  void Number(T& value) {
    Raw(&value, sizeof(value));
  }
  void Word(std::string& word) {
    auto size = static_cast<uint64_t>(word.size());
    Number(size);
    word.resize(static_cast<size_t>(size));
    Raw(word.data(), word.size());
  }
  template <typename T, typename Each>
  void List(std::vector<T>& list, Each&& each) {
    auto size = static_cast<uint64_t>(list.size());
    Number(size);
    list.resize(static_cast<size_t>(size));
    for (T& entry : list) each(entry);
  }

 private:
  void Raw(void* data, size_t size) {
    if (out_ != nullptr) {
      const auto* from = static_cast<const std::byte*>(data);
      out_->insert(out_->end(), from, from + size);
    } else {
      EQ_CHECK(size <= in_.size(), "{} bytes of {}", size, in_.size());
      if (size > 0) std::memcpy(data, in_.data(), size);
      in_ = in_.subspan(size);
    }
  }

  std::vector<std::byte>* out_ = nullptr;
  std::span<const std::byte> in_;
};

void Visit(Bytes& bytes, Machine& machine) {
  bytes.Word(machine.target);
  bytes.Number(machine.threads);
  bytes.Number(machine.peak_gflops);
  bytes.Number(machine.pack_bytes_per_second);
  bytes.Number(machine.launch_seconds);
  bytes.List(machine.kernel, [&](KernelRate& rate) {
    bytes.Number(rate.head_dim);
    bytes.Number(rate.block);
    bytes.Word(rate.dtype);
    bytes.Number(rate.gflops);
    bytes.Number(rate.row_seconds);
  });
  bytes.List(machine.linear, [&](LinearRate& rate) {
    bytes.Word(rate.dtype);
    bytes.Number(rate.gflops);
  });
  bytes.List(machine.links, [&](NamedLink& link) {
    bytes.Word(link.name);
    bytes.Number(link.link.latency_seconds);
    bytes.Number(link.link.bytes_per_second);
  });
  bytes.List(machine.node_of, [&](int32_t& node) { bytes.Number(node); });
}

}  // namespace

std::string_view AgreeOnArithmetic(Communicator& comm) {
  auto weakest = static_cast<uint64_t>(ActiveTarget());
  comm.AllReduce(std::span(&weakest, 1), Reduce::kMin);
  const auto target = static_cast<Target>(weakest);
  if (ArithmeticName(target) != ArithmeticName(ActiveTarget())) SetTarget(target);
  return ArithmeticName(target);
}

Machine AgreeOnMachine(Communicator& comm, const Machine& machine) {
  if (comm.size() == 1) return machine;
  Machine agreed = machine;
  std::vector<std::byte> message;
  Bytes writer(&message);
  Visit(writer, agreed);
  auto size = static_cast<uint64_t>(message.size());
  comm.Broadcast(std::as_writable_bytes(std::span(&size, 1)), 0);
  message.resize(static_cast<size_t>(size));
  comm.Broadcast(message, 0);
  Bytes reader{std::span<const std::byte>(message)};
  Visit(reader, agreed);
  return agreed;
}

}  // namespace equitile

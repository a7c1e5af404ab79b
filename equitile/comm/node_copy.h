// Bytes that all ranks of a node read and that none of them changes, packed weights above all: one
// copy per node, made by its first rank, mapped by the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "equitile/base/aligned_buffer.h"
#include "equitile/base/function_ref.h"
#include "equitile/comm/communicator.h"

namespace equitile {

class NodeCopy {
 public:
  NodeCopy() = default;
  // Collective. fill(to) writes all `bytes` of them (64-byte aligned) and is called on the first
  // rank of every node, and on ranks that are not allowed to map their first rank's memory (they
  // keep a copy of their own). fill should Poll the communicator now and then: the others wait.
  NodeCopy(Communicator& comm, int64_t bytes, FunctionRef<void(std::span<std::byte> to)> fill);
  ~NodeCopy();
  NodeCopy(NodeCopy&& other) noexcept;
  NodeCopy& operator=(NodeCopy&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }
  bool shared() const { return mapped_ != nullptr; }

 private:
  std::span<std::byte> Allocate(int64_t bytes);
  void Map(int file, int64_t bytes, bool writable);

  AlignedBuffer<std::byte> own_;
  void* mapped_ = nullptr;
  std::span<const std::byte> bytes_;
};

}  // namespace equitile

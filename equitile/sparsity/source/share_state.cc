#include "equitile/sparsity/source/share_state.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace equitile {

SourceState ShareState(Communicator& comm, SourceState state) {
  uint64_t count = state.size();
  comm.Broadcast(std::as_writable_bytes(std::span(&count, 1)), 0);
  SourceState all;
  auto part = state.begin();
  for (uint64_t i = 0; i < count; ++i) {
    std::string name = comm.rank() == 0 ? part->first : "";
    std::vector<std::byte> bytes;
    if (comm.rank() == 0) bytes = std::move((part++)->second);
    std::array<uint64_t, 2> sizes = {name.size(), bytes.size()};
    comm.Broadcast(std::as_writable_bytes(std::span(sizes)), 0);
    name.resize(sizes[0]);
    bytes.resize(sizes[1]);
    comm.Broadcast(std::as_writable_bytes(std::span(name)), 0);
    comm.Broadcast(bytes, 0);
    all[std::move(name)] = std::move(bytes);
  }
  return all;
}

}  // namespace equitile

#include "equitile/comm/node_copy.h"

#include <utility>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"

#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#endif

namespace equitile {

NodeCopy::~NodeCopy() {
#if defined(__linux__)
  if (mapped_ != nullptr) munmap(mapped_, bytes_.size());
#endif
}

NodeCopy::NodeCopy(NodeCopy&& other) noexcept { *this = std::move(other); }

NodeCopy& NodeCopy::operator=(NodeCopy&& other) noexcept {
  std::swap(own_, other.own_);
  std::swap(mapped_, other.mapped_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

std::span<std::byte> NodeCopy::Allocate(int64_t bytes) {
  own_ = AlignedBuffer<std::byte>(bytes);
  bytes_ = own_.span();
  return own_.span();
}

#if defined(__linux__)
namespace {

// The same for processes that can open each other's files under /proc: one kernel, one namespace of
// process ids, one user.
uint64_t NodeId() {
  std::string text;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text);
  std::error_code ignored;
  text += std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
  text += std::to_string(getuid());
  return Fnv1a64(text) | 1;  // 0 stands for "not told"
}

// One value of every rank, on every rank.
std::vector<uint64_t> Gather(Communicator& comm, uint64_t value) {
  std::vector<uint64_t> values(static_cast<size_t>(comm.size()));
  values[static_cast<size_t>(comm.rank())] = value;
  comm.AllReduce(std::span(values), Reduce::kMax);
  return values;
}

}  // namespace

void NodeCopy::Map(int file, int64_t bytes, bool writable) {
  void* at = mmap(nullptr, static_cast<size_t>(bytes),
                  writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) throw Error("[model] cannot map {} bytes: {}", bytes, std::strerror(errno));
  madvise(at, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a wish
  mapped_ = at;
  bytes_ = {static_cast<const std::byte*>(at), static_cast<size_t>(bytes)};
}

// An anonymous file, opened by the others through /proc: it has no name to collide, is not bounded
// by the size of /dev/shm, and is gone with its last process, however that ends.
NodeCopy::NodeCopy(Communicator& comm, int64_t bytes,
                   FunctionRef<void(std::span<std::byte> to)> fill) {
  if (comm.size() == 1 || bytes == 0) {
    fill(Allocate(bytes));
    return;
  }
  const auto rank = static_cast<size_t>(comm.rank());
  const std::vector<uint64_t> nodes = Gather(comm, NodeId());
  size_t first = 0, sharing = 0;
  while (nodes[first] != nodes[rank]) ++first;
  for (uint64_t node : nodes) sharing += node == nodes[rank];

  int file = -1;
  if (first == rank && sharing > 1) {
    file = memfd_create("equitile", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, bytes) != 0) close(std::exchange(file, -1));
  }
  if (first == rank) {
    if (file >= 0) Map(file, bytes, true);
    fill(file >= 0 ? std::span(static_cast<std::byte*>(mapped_), static_cast<size_t>(bytes))
                   : Allocate(bytes));
  }
  // Also says that the first rank is done.
  const std::vector<uint64_t> files = Gather(comm, static_cast<uint64_t>(file + 1));
  const std::vector<uint64_t> processes = Gather(comm, static_cast<uint64_t>(getpid()));
  if (first != rank) {
    const std::string path = fmt::format("/proc/{}/fd/{}", processes[first], files[first] - 1);
    const int other = files[first] > 0 ? open(path.c_str(), O_RDONLY | O_CLOEXEC) : -1;
    if (other >= 0) {
      Map(other, bytes, false);
      close(other);
    } else {
      fill(Allocate(bytes));
    }
  }
  comm.Barrier();  // everyone has it open
  if (file >= 0) close(file);
}
#else
NodeCopy::NodeCopy(Communicator&, int64_t bytes, FunctionRef<void(std::span<std::byte> to)> fill) {
  fill(Allocate(bytes));
}
#endif

}  // namespace equitile

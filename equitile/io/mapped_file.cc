#include "equitile/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "equitile/base/error.h"

namespace equitile {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

[[noreturn]] void CannotRead(const std::filesystem::path& path, int error) {
  throw InputError("[io] {}: cannot be read: {}", path.string(), std::strerror(error));
}

std::vector<std::byte> ReadToEnd(int fd, const std::filesystem::path& path) {
  std::vector<std::byte> bytes;
  size_t used = 0;
  for (;;) {
    if (used == bytes.size()) bytes.resize(std::max<size_t>(1 << 16, 2 * used));
    const ssize_t got = ::read(fd, bytes.data() + used, bytes.size() - used);
    if (got == 0) break;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) CannotRead(path, errno);
    used += static_cast<size_t>(got);
  }
  bytes.resize(used);
  return bytes;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  struct stat status {};
  if (file.fd < 0 || ::fstat(file.fd, &status) != 0) CannotRead(path, errno);
  if (S_ISDIR(status.st_mode)) CannotRead(path, EISDIR);
  if (S_ISREG(status.st_mode) && status.st_size > 0) {
    const auto size = static_cast<size_t>(status.st_size);
    void* map = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (map != MAP_FAILED) {
      bytes_ = {static_cast<const std::byte*>(map), size};
      return;
    }
  }
  copy_ = ReadToEnd(file.fd, path);
  bytes_ = copy_;
}

MappedFile::~MappedFile() {
  if (copy_.empty() && !bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

void MappedFile::Forget(std::span<const std::byte> bytes) const {
  if (!copy_.empty() || bytes.empty()) return;
  EQ_CHECK(bytes.data() >= bytes_.data() &&
           bytes.data() + bytes.size() <= bytes_.data() + bytes_.size());
  // Whole pages within: the mapping begins on one.
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto offset = static_cast<size_t>(bytes.data() - bytes_.data());
  const size_t begin = (offset + page - 1) / page * page;
  const size_t end = (offset + bytes.size()) / page * page;
  if (begin < end) {
    ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
  }
}

void MappedFile::ReadAhead(bool on) const {
  if (!copy_.empty() || bytes_.empty()) return;
  ::madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), on ? MADV_NORMAL : MADV_RANDOM);
}

}  // namespace equitile

#include "equitile/io/atomic_write.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/io/temporary_name.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void CannotWrite(const fs::path& path, int error) {
  if (error == ENOSPC || error == EDQUOT || error == EIO || error == EFBIG) {
    throw Error("[io] {}: writing failed: {}", path.string(), std::strerror(error));
  }
  throw InputError("[io] {}: cannot be written: {}", path.string(), std::strerror(error));
}

// An open file that is closed, and removed if it is still temporary, when it goes out of scope.
class Output {
 public:
  Output(const fs::path& path, int flags, bool temporary)
      : path_(path), temporary_(temporary), fd_(::open(path.c_str(), O_CLOEXEC | flags, 0666)) {
    open_error_ = fd_ < 0 ? errno : 0;
    if (fd_ < 0) temporary_ = false;
  }
  ~Output() {
    if (fd_ >= 0) ::close(fd_);
    if (temporary_) ::unlink(path_.c_str());
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  int fd() const { return fd_; }

  // Each returns 0 or errno.
  int Opened() const { return open_error_; }

  int Write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return errno;
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return 0;
  }

  int Sync() { return ::fsync(fd_) == 0 ? 0 : errno; }

  // Network file systems report a full device as late as here.
  int Close() { return ::close(std::exchange(fd_, -1)) == 0 ? 0 : errno; }

  int RenameTo(const fs::path& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0) return errno;
    temporary_ = false;
    return 0;
  }

 private:
  fs::path path_;
  bool temporary_;
  int fd_;
  int open_error_ = 0;
};

// A name to begin under, in a folder where nothing is left of dead processes.
fs::path FreshName(const fs::path& target) {
  RemoveLeftovers(target);
  return TemporaryName(target);
}

void Check(const fs::path& path, int error) {
  if (error != 0) CannotWrite(path, error);
}

// A device or a pipe: written into, never replaced.
bool IsStream(const fs::path& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (path.empty() || !path.has_filename()) Check(path, EISDIR);
  if (fs::is_directory(status)) Check(path, EISDIR);
  return fs::exists(status) && !fs::is_regular_file(status);
}

// Renaming would replace a file that is write-protected.
void CheckReplaceable(const fs::path& path) {
  std::error_code ignored;
  if (fs::exists(path, ignored) && ::access(path.c_str(), W_OK) != 0) Check(path, errno);
}

fs::path Target(const fs::path& path) {
  std::error_code ignored;
  return fs::is_symlink(fs::symlink_status(path, ignored)) ? fs::weakly_canonical(path, ignored)
                                                           : path;
}

}  // namespace

void WriteFileAtomically(const fs::path& path, std::span<const std::span<const std::byte>> parts) {
  const auto check = [&](int error) { Check(path, error); };
  if (IsStream(path)) {
    Output output(path, O_WRONLY, /*temporary=*/false);
    check(output.Opened());
    for (const auto& part : parts) check(output.Write(part));
    check(output.Close());
    return;
  }

  CheckReplaceable(path);
  const fs::path target = Target(path);
  Output output(FreshName(target), O_WRONLY | O_CREAT | O_EXCL, /*temporary=*/true);
  check(output.Opened());
  for (const auto& part : parts) check(output.Write(part));
  check(output.Sync());
  check(output.Close());
  check(output.RenameTo(target));
}

// What is not a regular file gets the bytes when they are complete.
struct AtomicFile::State {
  explicit State(const fs::path& file)
      : path(file),
        stream(IsStream(file)),
        target(stream ? fs::temp_directory_path() / "equitile" : Target(file)),
        output(FreshName(target), O_RDWR | O_CREAT | O_EXCL, /*temporary=*/true) {}
  fs::path path;
  bool stream;
  fs::path target;
  Output output;
};

AtomicFile::AtomicFile(const fs::path& path) {
  if (!IsStream(path)) CheckReplaceable(path);
  state_ = std::make_unique<State>(path);
  Check(path, state_->output.Opened());
}

AtomicFile::~AtomicFile() = default;

int AtomicFile::fd() const { return state_->output.fd(); }

void AtomicFile::Fail(int error) const { CannotWrite(state_->path, error); }

void AtomicFile::Close() {
  if (state_->stream || fd() < 0) return;
  Check(state_->path, state_->output.Sync());
  Check(state_->path, state_->output.Close());
}

void AtomicFile::Commit() {
  const auto check = [&](int error) { Check(state_->path, error); };
  if (!state_->stream) {
    Close();
    return check(state_->output.RenameTo(state_->target));
  }
  Output stream(state_->path, O_WRONLY, /*temporary=*/false);
  check(stream.Opened());
  std::vector<std::byte> part(size_t{1} << 20);
  for (off_t at = 0;;) {
    const ssize_t got = ::pread(fd(), part.data(), part.size(), at);
    if (got < 0) check(errno);
    if (got <= 0) break;
    check(stream.Write(std::span(part).first(static_cast<size_t>(got))));
    at += got;
  }
  check(stream.Close());
}

void CheckWritable(const fs::path& path) {
  if (IsStream(path)) {
    if (::access(path.c_str(), W_OK) != 0) Check(path, errno);
    return;
  }
  CheckReplaceable(path);
  Check(path,
        Output(FreshName(Target(path)), O_WRONLY | O_CREAT | O_EXCL, /*temporary=*/true).Opened());
}

}  // namespace equitile

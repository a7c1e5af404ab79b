// Files appear whole or not at all: whoever reads an output never sees half of it, and a failed run
// leaves the old one.
#pragma once

#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <span>

namespace equitile {

// Writes `parts`, one after another, under a temporary name beside `path`, then renames. Follows a
// symbolic link; writes straight into what is not a regular file (/dev/stdout, a pipe). Throws
// InputError where the file cannot be created or replaced, Error where the device fails or is full;
// then no temporary file is left. A killed process leaves one, which the next one that writes
// `path` removes (temporary_name.h).
void WriteFileAtomically(const std::filesystem::path& path,
                         std::span<const std::span<const std::byte>> parts);
inline void WriteFileAtomically(const std::filesystem::path& path,
                                std::initializer_list<std::span<const std::byte>> parts) {
  WriteFileAtomically(path, std::span(parts.begin(), parts.size()));
}

// The same for what is written little by little, also out of order (video).
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();  // without Commit nothing is left
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  int fd() const;                           // for reading, writing and seeking
  [[noreturn]] void Fail(int error) const;  // what using fd() gave, as errno
  void Close();                             // all is written, and safe; fd() is gone
  void Commit();                            // the file is whole: gives it its name

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// For work that takes long before it writes: throws what WriteFileAtomically would throw now where
// `path` cannot be created or replaced. Leaves nothing behind and changes nothing, but for
// leftovers of killed processes.
void CheckWritable(const std::filesystem::path& path);

}  // namespace equitile

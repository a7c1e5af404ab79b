// A whole file as bytes, without copying it: checkpoints and masks may be larger than what is used
// of them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

namespace equitile {

// Read-only. Whatever cannot be mapped (a pipe) is read to its end instead. A file that another
// process shortens while it is mapped kills this one with SIGBUS; WriteFileAtomically never does
// that to its readers.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);  // throws InputError
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

  // These bytes will not be read soon: they stop counting as memory of this process. They can still
  // be read.
  void Forget(std::span<const std::byte> bytes) const;

  // Whether touching a page may read its neighbours too, as it does unless told. Off for a few
  // looks far apart: read ahead they would be the whole file.
  void ReadAhead(bool on) const;

 private:
  std::vector<std::byte> copy_;  // of what cannot be mapped
  std::span<const std::byte> bytes_;
};

}  // namespace equitile

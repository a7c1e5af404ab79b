// Safetensors files and the folders they come in: mapped, never copied. Nothing in a header is
// believed before it has been checked against the file.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "equitile/io/arrays/stored_tensor.h"
#include "equitile/io/mapped_file.h"

namespace equitile {

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;            // in the order of their bytes in the file
  std::map<std::string, std::string> metadata;  // __metadata__
};

// Checks every field of the header against the bytes that follow: the tensors fill them without
// gap, overlap or tail. `name` is for messages; views point into `file` and `name`. Throws
// InputError.
SafetensorsHeader ParseSafetensors(std::span<const std::byte> file, std::string_view name);

// The tensors of one file, or of one part of a checkpoint in one file or several. Views stay valid
// while this lives. Immutable, so any thread may read.
class TensorFiles {
 public:
  // Throw InputError. A folder holds STEM.safetensors, or shards and STEM.safetensors.index.json;
  // STEM is diffusion_pytorch_model or model.
  static TensorFiles OpenFile(const std::filesystem::path& path);
  static TensorFiles OpenFolder(const std::filesystem::path& folder);

  // Shard after shard, in the order of their bytes.
  std::span<const StoredTensor> tensors() const { return tensors_; }
  const StoredTensor* Find(std::string_view name) const;        // nullptr if absent
  const StoredTensor& operator[](std::string_view name) const;  // throws InputError if absent
  // Of a single file; empty for shards.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& name() const { return name_; }  // the file, or the index
  int64_t Bytes() const;                             // of all tensors

  // The tensor has been read and will not be needed soon; see MappedFile::Forget.
  void Forget(const StoredTensor& tensor) const;

  // A number that changes with any name, type, shape or byte that it looks at: all headers, and
  // parts of every tensor spread over it. Reads those parts alone: kilobytes of 28 GB.
  uint64_t Fingerprint() const;

 private:
  struct File {
    explicit File(const std::filesystem::path& path) : name(path.string()), map(path) {}
    std::string name;
    MappedFile map;
  };
  TensorFiles() = default;
  void Add(const std::filesystem::path& path);
  void IndexNames();

  std::string name_;
  std::vector<std::unique_ptr<File>> files_;  // their addresses are in the views
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

// As the reference writes: largest types first, then by name; header padded so that every tensor is
// aligned. Atomically. Names must be unique and bytes as long as type and shape say.
void WriteSafetensors(const std::filesystem::path& path, std::span<const StoredTensor> tensors,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace equitile

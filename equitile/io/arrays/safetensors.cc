#include "equitile/io/arrays/safetensors.h"

#include <algorithm>
#include <set>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"
#include "equitile/io/atomic_write.h"
#include "equitile/io/json_value.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStems[] = {"diffusion_pytorch_model", "model"};

// Shard name -> the tensors that the index says are in it.
using Shards = std::map<std::string, std::set<std::string>>;

void CheckShardName(const std::string& shard, const std::string& index) {
  const bool plain = shard.find_first_of("/\\") == std::string::npos &&
                     shard.find('\0') == std::string::npos && shard != "." && shard != "..";
  if (!plain || !shard.ends_with(".safetensors")) {
    throw InputError("[io] {}: shard '{}' must be the plain name of a .safetensors file", index,
                     shard);
  }
}

Shards ReadIndex(const fs::path& path) {
  const std::string name = path.string();
  const Json document = ParseJson(ReadTextFile(path), name);
  const JsonValue root(document, name);
  const JsonValue map = root["weight_map"];
  Shards shards;
  for (const auto& item : map.Items()) {
    if (!item.value().is_string()) {
      throw InputError("[io] {}: weight_map: tensor '{}' must name its shard", name, item.key());
    }
    const auto shard = item.value().get<std::string>();
    CheckShardName(shard, name);
    shards[shard].insert(item.key());
  }
  if (shards.empty()) throw InputError("[io] {}: weight_map is empty", name);
  return shards;
}

// A shard that the index does not know belongs to another checkpoint, or the index does.
void CheckNoOtherShards(const fs::path& folder, const std::string& stem, const Shards& shards,
                        const std::string& index) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    const bool is_shard = file.starts_with(stem + "-") && file.ends_with(".safetensors") &&
                          file.find("-of-") != std::string::npos;
    if (is_shard && !shards.contains(file)) {
      throw InputError("[io] {}: shard '{}' lies beside it but is not in it", index, file);
    }
  }
}

void CheckShard(const std::string& shard, std::span<const StoredTensor> tensors,
                const std::set<std::string>& expected, const std::string& index) {
  size_t found = 0;
  for (const StoredTensor& tensor : tensors) {
    if (!expected.contains(tensor.name)) {
      throw InputError(
          "[io] {}: shard '{}' holds tensor '{}', which the index does not place there", index,
          shard, tensor.name);
    }
    ++found;
  }
  if (found == expected.size()) return;
  for (const std::string& name : expected) {
    const auto has = [&](const StoredTensor& tensor) { return tensor.name == name; };
    if (std::none_of(tensors.begin(), tensors.end(), has)) {
      throw InputError("[io] {}: tensor '{}' should be in shard '{}' but is not", index, name,
                       shard);
    }
  }
}

std::string HeaderText(std::span<const StoredTensor* const> order,
                       const std::map<std::string, std::string>& metadata) {
  Json json = Json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  size_t begin = 0;
  for (const StoredTensor* tensor : order) {
    const size_t end = begin + tensor->bytes.size();
    EQ_CHECK(!json.contains(tensor->name), "tensor '{}' written twice", tensor->name);
    json[tensor->name] = {{"dtype", StoredTypeName(tensor->type)},
                          {"shape", tensor->shape},
                          {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = JsonText(json);
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

void TensorFiles::Add(const fs::path& path) {
  std::error_code ignored;
  // Weights are read while the model runs, in any order: a pipe will not do.
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored)) {
    throw InputError("[io] {}: not a regular file", path.string());
  }
  files_.push_back(std::make_unique<File>(path));
  const File& file = *files_.back();
  SafetensorsHeader header = ParseSafetensors(file.map.bytes(), file.name);
  std::move(header.tensors.begin(), header.tensors.end(), std::back_inserter(tensors_));
  metadata_ = std::move(header.metadata);
}

void TensorFiles::IndexNames() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const bool is_new = by_name_.emplace(tensors_[i].name, i).second;
    if (!is_new) throw InputError("[io] {}: tensor '{}' is there twice", name_, tensors_[i].name);
  }
}

TensorFiles TensorFiles::OpenFile(const fs::path& path) {
  TensorFiles files;
  files.name_ = path.string();
  files.Add(path);
  files.IndexNames();
  return files;
}

TensorFiles TensorFiles::OpenFolder(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    throw InputError("[io] {}: no such folder", folder.string());
  }
  for (const std::string stem : kStems) {
    const fs::path index = folder / (stem + ".safetensors.index.json");
    const fs::path single = folder / (stem + ".safetensors");
    if (!fs::exists(index, ignored)) {
      if (fs::exists(single, ignored)) return OpenFile(single);
      continue;
    }
    TensorFiles files;
    files.name_ = index.string();
    const Shards shards = ReadIndex(index);
    CheckNoOtherShards(folder, stem, shards, files.name_);
    for (const auto& [shard, expected] : shards) {
      if (!fs::exists(folder / shard, ignored)) {
        throw InputError("[io] {}: shard '{}' is missing", files.name_, shard);
      }
      const size_t before = files.tensors_.size();
      files.Add(folder / shard);
      CheckShard(shard, std::span(files.tensors_).subspan(before), expected, files.name_);
    }
    files.metadata_.clear();
    files.IndexNames();
    return files;
  }
  throw InputError(
      "[io] {}: holds no weights; expected {}.safetensors or {}.safetensors, or their "
      ".index.json with shards",
      folder.string(), kStems[0], kStems[1]);
}

void TensorFiles::Forget(const StoredTensor& tensor) const {
  for (const auto& file : files_) {
    const std::span<const std::byte> bytes = file->map.bytes();
    if (tensor.bytes.data() >= bytes.data() && tensor.bytes.data() < bytes.data() + bytes.size()) {
      return file->map.Forget(tensor.bytes);
    }
  }
}

const StoredTensor* TensorFiles::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

const StoredTensor& TensorFiles::operator[](std::string_view name) const {
  const StoredTensor* tensor = Find(name);
  if (tensor == nullptr) throw InputError("[io] {}: tensor '{}' is missing", name_, name);
  return *tensor;
}

int64_t TensorFiles::Bytes() const {
  int64_t bytes = 0;
  for (const StoredTensor& tensor : tensors_) bytes += static_cast<int64_t>(tensor.bytes.size());
  return bytes;
}

uint64_t TensorFiles::Fingerprint() const {
  // By name, so that another sharding of the same weights is the same model.
  std::vector<const StoredTensor*> order;
  for (const StoredTensor& tensor : tensors_) order.push_back(&tensor);
  std::sort(order.begin(), order.end(),
            [](const StoredTensor* a, const StoredTensor* b) { return a->name < b->name; });
  constexpr size_t kPartBytes = 256, kParts = 8;
  for (const auto& file : files_) file->map.ReadAhead(false);
  Hasher hasher;
  for (const StoredTensor* tensor : order) {
    hasher.Add(std::string_view(tensor->name)).Add(tensor->type);
    hasher.Add(std::span(tensor->shape));
    const std::span<const std::byte> bytes = tensor->bytes;
    for (size_t part = 0; part < kParts; ++part) {
      const size_t end = bytes.size() * (part + 1) / kParts;
      const size_t length = std::min(end - bytes.size() * part / kParts, kPartBytes);
      hasher.Add(Fnv1a64(bytes.subspan(end - length, length)));
    }
  }
  for (const auto& file : files_) file->map.ReadAhead(true);
  return hasher.Digest();
}

void WriteSafetensors(const fs::path& path, std::span<const StoredTensor> tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<const StoredTensor*> order;
  for (const StoredTensor& tensor : tensors) {
    EQ_CHECK(tensor.Elements() * StoredTypeBits(tensor.type) ==
                 static_cast<int64_t>(tensor.bytes.size()) * 8,
             "tensor '{}' has {} bytes", tensor.name, tensor.bytes.size());
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const StoredTensor* a, const StoredTensor* b) {
    const int64_t a_bits = StoredTypeBits(a->type), b_bits = StoredTypeBits(b->type);
    return a_bits != b_bits ? a_bits > b_bits : a->name < b->name;
  });
  std::string start(8, '\0');
  const std::string header = HeaderText(order, metadata);
  for (size_t i = 0; i < 8; ++i) start[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  start += header;
  std::vector<std::span<const std::byte>> parts = {std::as_bytes(std::span(start))};
  for (const StoredTensor* tensor : order) parts.push_back(tensor->bytes);
  WriteFileAtomically(path, parts);
}

}  // namespace equitile

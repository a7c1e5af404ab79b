#include "equitile/generate/run_checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"
#include "equitile/io/json_value.h"
#include "equitile/io/mapped_file.h"

namespace equitile {
namespace {

constexpr std::string_view kFormats = "equitile run checkpoint ";
constexpr std::string_view kFormat = "equitile run checkpoint 2";
constexpr const char* kIdentityPrefix = "identity.";
constexpr const char* kSparsityPrefix = "sparsity.";
constexpr const char* kSteps = "steps";
constexpr double kMostSeconds = 1e300;

using Texts = std::map<std::string, std::string>;

// Eight bytes a step: checkpoints of large videos have a hundred megabytes.
void AddBytes(Hasher& hasher, std::span<const std::byte> bytes) {
  hasher.Add(bytes.size());
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min<size_t>(8, bytes.size() - i));
    hasher.Add(word);
  }
}

// Over everything but itself; tensors by name, since their order in the file is the writer's.
std::string Checksum(std::span<const StoredTensor> tensors, const Texts& metadata) {
  std::map<std::string_view, const StoredTensor*> by_name;
  for (const StoredTensor& tensor : tensors) by_name[tensor.name] = &tensor;
  Hasher hasher;
  for (const auto& [name, tensor] : by_name) {
    hasher.Add(name).Add(tensor->type).Add(std::span(tensor->shape));
    AddBytes(hasher, tensor->bytes);
  }
  for (const auto& [key, value] : metadata) {
    if (key == "checksum") continue;
    hasher.Add(std::string_view(key)).Add(std::string_view(value));
  }
  return fmt::format("{:016x}", hasher.Digest());
}

struct NamedPart {
  const char* name;
  std::vector<float>* values;
};

std::vector<NamedPart> Parts(DenoiseState& state) {
  return {{"latents", &state.latents},
          {"sampler.corrected", &state.sampler.corrected},
          {"sampler.estimate", &state.sampler.estimate},
          {"sampler.older_estimate", &state.sampler.older_estimate}};
}

const StoredTensor* Find(const SafetensorsHeader& file, std::string_view name) {
  const auto found = std::find_if(file.tensors.begin(), file.tensors.end(),
                                  [&](const StoredTensor& tensor) { return tensor.name == name; });
  return found == file.tensors.end() ? nullptr : &*found;
}

Texts WithPrefix(const Texts& metadata, const std::string& prefix) {
  Texts found;
  for (const auto& [key, value] : metadata) {
    if (key.starts_with(prefix)) found[key.substr(prefix.size())] = value;
  }
  return found;
}

int64_t ParseStep(const Texts& metadata, const std::filesystem::path& path) {
  const auto found = metadata.find("step");
  int64_t step = -1;
  if (found != metadata.end()) {
    const std::string& text = found->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
    if (error != std::errc{} || end != text.data() + text.size()) step = -1;
  }
  if (step < 0) throw InputError("[generate] {}: says no step", path.string());
  return step;
}

// [[seconds, skipped]]
std::string StepsText(std::span<const StepRecord> steps) {
  Json json = Json::array();
  for (const StepRecord& step : steps) json.push_back(Json::array({step.seconds, step.skipped}));
  return JsonText(json);
}

std::vector<StepRecord> ParseSteps(const Texts& metadata, const std::filesystem::path& path) {
  const auto found = metadata.find(kSteps);
  if (found == metadata.end()) return {};
  const std::string name = fmt::format("{}: {}", path.string(), kSteps);
  const Json document = ParseJson(found->second, name);
  const JsonValue root(document, name);
  std::vector<StepRecord> steps;
  for (int64_t i = 0; i < root.Size(); ++i) {
    const JsonValue step = root.At(i);
    step.Size(2);
    steps.push_back({.seconds = step.At(0).Number(0, kMostSeconds), .skipped = step.At(1).Bool()});
  }
  return steps;
}

std::string Shortened(const std::string& text) {
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

}  // namespace

void WriteRunCheckpoint(const std::filesystem::path& path, const RunCheckpoint& checkpoint) {
  Texts metadata = {{"format", std::string(kFormat)},
                    {"version", checkpoint.version},
                    {"step", std::to_string(checkpoint.state.sampler.step)}};
  for (const auto& [name, value] : checkpoint.identity) metadata[kIdentityPrefix + name] = value;
  if (!checkpoint.steps.empty()) metadata[kSteps] = StepsText(checkpoint.steps);
  std::vector<int64_t> shape;
  for (int dim = 0; dim < checkpoint.shape.Rank(); ++dim) shape.push_back(checkpoint.shape[dim]);
  std::vector<StoredTensor> tensors;
  for (const NamedPart& part : Parts(const_cast<DenoiseState&>(checkpoint.state))) {
    if (part.values->empty()) continue;
    StoredTensor tensor;
    tensor.name = part.name;
    tensor.shape = shape;
    tensor.bytes = std::as_bytes(std::span<const float>(*part.values));
    tensors.push_back(std::move(tensor));
  }
  for (const auto& [name, bytes] : checkpoint.sparsity) {
    StoredTensor tensor;
    tensor.name = kSparsityPrefix + name;
    tensor.type = StoredType::kU8;
    tensor.shape = {std::ssize(bytes)};
    tensor.bytes = bytes;
    tensors.push_back(std::move(tensor));
  }
  metadata["checksum"] = Checksum(tensors, metadata);
  WriteSafetensors(path, tensors, metadata);
}

std::string RunChecksum(const SafetensorsHeader& file) {
  return Checksum(file.tensors, file.metadata);
}

RunCheckpoint ReadRunCheckpoint(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::string name = path.string();
  return ParseRunCheckpoint(ParseSafetensors(file.bytes(), name), path);
}

bool IsRunCheckpoint(const std::filesystem::path& path) {
  constexpr size_t kLooked = 4096;  // "format" is among the first of its sorted metadata
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  try {
    const MappedFile file(path);
    const auto* text = reinterpret_cast<const char*>(file.bytes().data());
    return std::string_view(text, std::min(file.bytes().size(), kLooked)).find(kFormats) !=
           std::string_view::npos;
  } catch (const InputError&) {
    return false;
  }
}

void CheckCheckpointPlace(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) || IsRunCheckpoint(path)) return;
  throw InputError(
      "{}: is not a checkpoint of this program, and one would be written there; move it, or write "
      "to another name",
      path.string());
}

RunCheckpoint ParseRunCheckpoint(const SafetensorsHeader& file, const std::filesystem::path& path) {
  const Texts& metadata = file.metadata;
  const auto format = metadata.find("format");
  if (format == metadata.end() || format->second != kFormat) {
    const bool is_ours = format != metadata.end() && format->second.starts_with(kFormats);
    throw InputError("[generate] {}: not a checkpoint of this {}", path.string(),
                     is_ours ? "version of the program" : "program");
  }
  const auto checksum = metadata.find("checksum");
  if (checksum == metadata.end() || checksum->second != RunChecksum(file)) {
    throw InputError("[generate] {}: damaged: its checksum is wrong", path.string());
  }
  RunCheckpoint checkpoint;
  checkpoint.identity = WithPrefix(metadata, kIdentityPrefix);
  if (const auto version = metadata.find("version"); version != metadata.end()) {
    checkpoint.version = version->second;
  }
  const StoredTensor* latents = Find(file, "latents");
  if (latents == nullptr || latents->shape.size() != 4) {
    throw InputError("[generate] {}: 'latents' has shape {}; four extents are expected",
                     path.string(), latents == nullptr ? "none" : latents->ShapeText());
  }
  for (int64_t extent : latents->shape) checkpoint.shape.Append(extent);
  checkpoint.state.sampler.step = ParseStep(metadata, path);
  checkpoint.steps = ParseSteps(metadata, path);
  for (const NamedPart& part : Parts(checkpoint.state)) {
    const StoredTensor* tensor = Find(file, part.name);
    if (tensor == nullptr) continue;
    tensor->CheckShape(checkpoint.shape);
    *part.values = tensor->Floats();
  }
  const std::string prefix = kSparsityPrefix;
  for (const StoredTensor& tensor : file.tensors) {
    if (!tensor.name.starts_with(prefix)) continue;
    checkpoint.sparsity[tensor.name.substr(prefix.size())] = {tensor.bytes.begin(),
                                                              tensor.bytes.end()};
  }
  return checkpoint;
}

void CheckSameRun(const std::filesystem::path& path, const RunCheckpoint& checkpoint,
                  const Texts& identity) {
  const auto find = [](const Texts& texts, const std::string& name) {
    const auto found = texts.find(name);
    return found == texts.end() ? std::nullopt : std::optional(found->second);
  };
  const auto quoted = [](const std::optional<std::string>& text) {
    return text ? fmt::format("'{}'", Shortened(*text)) : "left open";
  };
  Texts names = identity;
  names.insert(checkpoint.identity.begin(), checkpoint.identity.end());
  for (const auto& [name, unused] : names) {
    const auto stored = find(checkpoint.identity, name), wanted = find(identity, name);
    if (stored == wanted) continue;
    throw InputError("[generate] {}: belongs to another run: its {} is {}, not {}", path.string(),
                     name, quoted(stored), quoted(wanted));
  }
}

}  // namespace equitile

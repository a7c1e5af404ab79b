// The header of a safetensors file, read as a stream of JSON events: keys given twice, nesting and
// absurd counts are seen when they come, not after a tree of them has been built.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "equitile/base/error.h"
#include "equitile/io/arrays/safetensors.h"

namespace equitile {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the official reader
constexpr size_t kMaxTensors = 1'000'000;          // a thousand times what the largest Wan has
constexpr size_t kMaxNameBytes = 4096;
constexpr size_t kMaxRankInFile = 64;

// File contents in a message: one line, not too long.
std::string Quoted(std::string_view text) {
  std::string quoted;
  for (char c : text.substr(0, 80)) quoted += static_cast<unsigned char>(c) < ' ' ? '?' : c;
  return text.size() > 80 ? quoted + "..." : quoted;
}

// One entry as the header says it, nothing checked but its form.
struct Entry {
  std::string name;
  std::string type;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_type = false, has_shape = false, has_offsets = false;
};

// Accepts {"NAME": {"dtype": text, "shape": [...], "data_offsets": [...]}, "__metadata__": {...}}.
// Other keys of an entry are skipped, as the official reader does.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderEvents(std::string_view file) : file_(file) {}

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  bool null() override { return Other(); }
  bool boolean(bool) override { return Other(); }
  bool number_integer(number_integer_t) override { return Other(); }  // negative ones come here
  bool number_float(number_float_t, const string_t&) override { return Other(); }
  bool binary(binary_t&) override { return Other(); }

  bool number_unsigned(number_unsigned_t value) override {
    if (skip_ > 0) return true;
    if (skip_value_) return Skipped();
    if (list_ == nullptr) return Other();
    if (list_->size() == kMaxRankInFile) {
      Fail("tensor '{}': '{}' has more than {} numbers", Quoted(entries.back().name), key_,
           kMaxRankInFile);
    }
    list_->push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (skip_ > 0) return true;
    if (skip_value_) return Skipped();
    if (place_ == Place::kMetadata) {
      metadata[key_] = std::move(value);
      return true;
    }
    if (place_ != Place::kEntry || key_ != "dtype" || list_ != nullptr) return Other();
    entries.back().type = std::move(value);
    entries.back().has_type = true;
    return true;
  }

  bool start_object(size_t) override {
    if (Nested()) return true;
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop || list_ != nullptr) return Other();
    keys_.clear();
    if (key_ == "__metadata__") {
      place_ = Place::kMetadata;
      return true;
    }
    if (entries.size() == kMaxTensors) Fail("more than {} tensors", kMaxTensors);
    entries.emplace_back().name = key_;
    place_ = Place::kEntry;
    return true;
  }

  bool end_object() override {
    if (skip_ > 0) return EndNested();
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (Nested()) return true;
    if (place_ != Place::kEntry || list_ != nullptr) return Other();
    Entry& entry = entries.back();
    if (key_ == "shape") {
      list_ = &entry.shape;
      entry.has_shape = true;
    } else if (key_ == "data_offsets") {
      list_ = &entry.offsets;
      entry.has_offsets = true;
    } else {
      return Other();
    }
    return true;
  }

  bool end_array() override {
    if (skip_ > 0) return EndNested();
    list_ = nullptr;
    return true;
  }

  bool key(string_t& value) override {
    if (skip_ > 0) return true;
    if (value.size() > kMaxNameBytes) {
      Fail("a name of {} bytes; at most {}", value.size(), kMaxNameBytes);
    }
    const bool top = place_ == Place::kTop;
    if (!(top ? names_ : keys_).insert(value).second) {
      Fail("{} '{}' is there twice", top ? "tensor" : "key", Quoted(value));
    }
    key_ = std::move(value);
    skip_value_ =
        place_ == Place::kEntry && key_ != "dtype" && key_ != "shape" && key_ != "data_offsets";
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    Fail("header is not JSON (byte {})", position);
  }

 private:
  enum class Place { kStart, kTop, kEntry, kMetadata, kEnd };

  template <typename... Args>
  [[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) {
    throw InputError("[io] {}: {}", file_, fmt::format(format, std::forward<Args>(args)...));
  }

  bool Skipped() {
    skip_value_ = false;
    return true;
  }

  // Inside the value of a key that is not ours; its depth is all that is kept.
  bool Nested() {
    if (skip_ == 0 && !skip_value_) return false;
    if (++skip_ > 16) Fail("header is nested too deep");
    return true;
  }
  bool EndNested() {
    if (--skip_ == 0) skip_value_ = false;
    return true;
  }

  // A value where none of its kind belongs.
  bool Other() {
    if (skip_ > 0) return true;
    if (skip_value_) return Skipped();
    switch (place_) {
      case Place::kEntry:
        Fail("tensor '{}': '{}' must be {}", Quoted(entries.back().name), key_,
             key_ == "dtype" ? "a text" : "a list of whole numbers from 0");
      case Place::kMetadata:
        Fail("__metadata__: '{}' must be a text", Quoted(key_));
      case Place::kTop:
        Fail("'{}' must be an object with dtype, shape and data_offsets", Quoted(key_));
      default:
        Fail("header must be a JSON object");
    }
  }

  std::string_view file_;
  Place place_ = Place::kStart;
  std::string key_;
  std::unordered_set<std::string> names_, keys_;
  std::vector<uint64_t>* list_ = nullptr;
  int skip_ = 0;
  bool skip_value_ = false;
};

StoredTensor TensorOf(Entry& entry, std::span<const std::byte> data, std::string_view file) {
  const auto fail = [&](const std::string& what) {
    throw InputError("[io] {}: tensor '{}': {}", file, Quoted(entry.name), what);
  };
  for (const auto& [there, key] :
       {std::pair(entry.has_type, "dtype"), std::pair(entry.has_shape, "shape"),
        std::pair(entry.has_offsets, "data_offsets")}) {
    if (!there) fail(fmt::format("'{}' is missing", key));
  }
  const std::optional<StoredType> type = ParseStoredType(entry.type);
  if (!type) fail(fmt::format("unknown dtype '{}'", Quoted(entry.type)));
  if (entry.offsets.size() != 2) fail("'data_offsets' must be [begin, end]");
  const uint64_t begin = entry.offsets[0], end = entry.offsets[1];
  if (begin > end) fail(fmt::format("ends at {}, before it begins at {}", end, begin));
  if (end > data.size()) {
    fail(fmt::format("ends at byte {} of {}; the file is truncated, or the header wrong", end,
                     data.size()));
  }
  uint64_t bits = static_cast<uint64_t>(StoredTypeBits(*type));
  bool overflow = false;
  for (uint64_t extent : entry.shape) {
    overflow |= extent > static_cast<uint64_t>(INT64_MAX);
    overflow |= __builtin_mul_overflow(bits, extent, &bits);
  }
  // A zero after an overflow would make any shape look empty.
  if (overflow || bits > static_cast<uint64_t>(INT64_MAX)) fail("its shape is absurdly large");
  if (bits % 8 != 0) fail(fmt::format("its {} bits are not whole bytes", bits));
  if (bits / 8 != end - begin) {
    fail(fmt::format("{} of shape [{}] takes {} bytes, not {}", entry.type,
                     fmt::join(entry.shape, ", "), bits / 8, end - begin));
  }
  StoredTensor tensor;
  tensor.name = std::move(entry.name);
  tensor.type = *type;
  tensor.shape.assign(entry.shape.begin(), entry.shape.end());
  tensor.bytes = data.subspan(begin, end - begin);
  tensor.file = file;
  return tensor;
}

// Sorted by place: each begins where the one before ends, and the last one ends with the data.
void CheckLayout(const std::vector<StoredTensor>& tensors, std::span<const std::byte> data,
                 std::string_view file) {
  const std::byte* expected = data.data();
  const StoredTensor* before = nullptr;
  for (const StoredTensor& tensor : tensors) {
    const std::byte* begin = tensor.bytes.data();
    if (begin < expected) {
      throw InputError("[io] {}: tensors '{}' and '{}' overlap", file, Quoted(before->name),
                       Quoted(tensor.name));
    }
    if (begin > expected) {
      throw InputError("[io] {}: {} bytes before tensor '{}' belong to none", file,
                       begin - expected, Quoted(tensor.name));
    }
    expected = begin + tensor.bytes.size();
    before = &tensor;
  }
  const std::byte* end = data.data() + data.size();
  if (expected != end) {
    throw InputError("[io] {}: {} bytes after the last tensor belong to none", file,
                     end - expected);
  }
}

}  // namespace

SafetensorsHeader ParseSafetensors(std::span<const std::byte> file, std::string_view name) {
  if (file.size() < 8) {
    throw InputError("[io] {}: {} bytes are too short for a safetensors file", name, file.size());
  }
  uint64_t header_bytes = 0;
  for (size_t i = 8; i-- > 0;) {
    header_bytes = header_bytes << 8 | static_cast<uint64_t>(file[i]);
  }
  if (header_bytes > kMaxHeaderBytes) {
    throw InputError("[io] {}: says that its header has {} bytes; at most {} (is it safetensors?)",
                     name, header_bytes, kMaxHeaderBytes);
  }
  if (header_bytes > file.size() - 8) {
    throw InputError("[io] {}: truncated: the header should have {} bytes, {} are there", name,
                     header_bytes, file.size() - 8);
  }
  const std::span<const std::byte> data = file.subspan(8 + header_bytes);
  const char* text = reinterpret_cast<const char*>(file.data()) + 8;
  HeaderEvents events(name);
  nlohmann::json::sax_parse(text, text + header_bytes, &events);

  SafetensorsHeader header;
  header.metadata = std::move(events.metadata);
  header.tensors.reserve(events.entries.size());
  for (Entry& entry : events.entries) header.tensors.push_back(TensorOf(entry, data, name));
  // Empty tensors lie between others; where two begin together the empty one is first.
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) {
              if (a.bytes.data() != b.bytes.data()) return a.bytes.data() < b.bytes.data();
              if (a.bytes.size() != b.bytes.size()) return a.bytes.size() < b.bytes.size();
              return a.name < b.name;
            });
  CheckLayout(header.tensors, data, name);
  return header;
}

}  // namespace equitile

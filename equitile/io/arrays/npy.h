// NumPy's .npy files: the one array format that masks, pictures of attention and golden tensors
// travel in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace equitile {

enum class NpyType : uint8_t { kBool, kUint8, kFloat16, kFloat32, kInt64 };

std::string_view NpyTypeName(NpyType type);  // "bool", "uint8", "float16", "float32", "int64"
int64_t NpyTypeBytes(NpyType type);

struct NpyHeader {
  NpyType type = NpyType::kUint8;
  std::vector<int64_t> shape;  // outermost first; [] is one element
  size_t data_offset = 0;      // of the first element in the file

  int64_t Count() const;  // elements
};

// Elements in C order.
struct NpyArray {
  NpyType type = NpyType::kUint8;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};

// What messages say of other types, where nothing narrower is needed.
inline constexpr std::string_view kNpyTypes =
    "bool, uint8, or little-endian int64, float16 or float32 is needed";

// Checks the whole header, and that exactly its elements follow. `name` is for messages. Throws
// InputError for anything that is not a file of format 1, 2 or 3 in C order (or of a shape where
// the order makes no difference) with one of the types above.
NpyHeader ParseNpyHeader(std::span<const std::byte> file, std::string_view name,
                         std::string_view needed = kNpyTypes);

NpyArray ReadNpy(const std::filesystem::path& path);

// Format 1.0, atomically. data.size() must be what type and shape say.
void WriteNpy(const std::filesystem::path& path, NpyType type, std::span<const int64_t> shape,
              std::span<const std::byte> data);

}  // namespace equitile

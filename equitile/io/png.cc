#include "equitile/io/png.h"

#include <png.h>

#include <span>

#include "equitile/base/error.h"
#include "equitile/io/atomic_write.h"

namespace equitile {

void WritePng(const std::filesystem::path& path, const GrayImage& image) {
  constexpr int64_t kMaxExtent = 1'000'000;  // libpng's own default limit
  EQ_CHECK(image.height > 0 && image.height <= kMaxExtent && image.width > 0 &&
           image.width <= kMaxExtent);
  EQ_CHECK(static_cast<int64_t>(image.pixels.size()) == image.height * image.width);

  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.height = static_cast<png_uint_32>(image.height);
  png.width = static_cast<png_uint_32>(image.width);
  png.format = PNG_FORMAT_GRAY;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::vector<std::byte> bytes(size);
  // Without a row stride the rows follow one another; gray has no color map.
  if (png_image_write_to_memory(&png, bytes.data(), &size, 0, image.pixels.data(), 0, nullptr) ==
      0) {
    throw Error("[io] {}: making the picture failed: {}", path.string(), png.message);
  }
  WriteFileAtomically(path, {std::span(bytes).first(size)});
}

}  // namespace equitile

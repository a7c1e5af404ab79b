#include "equitile/io/frames/png.h"

#include <png.h>

#include <span>

#include "equitile/base/error.h"
#include "equitile/io/atomic_write.h"
#include "equitile/io/mapped_file.h"

namespace equitile {
namespace {

constexpr int64_t kMaxExtent = 1'000'000;  // libpng's own default limit

std::vector<std::byte> Encode(int64_t height, int64_t width, png_uint_32 format,
                              const std::vector<uint8_t>& pixels) {
  EQ_CHECK(height > 0 && height <= kMaxExtent && width > 0 && width <= kMaxExtent);
  EQ_CHECK(static_cast<int64_t>(pixels.size()) ==
           height * width * static_cast<int64_t>(PNG_IMAGE_SAMPLE_CHANNELS(format)));
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.height = static_cast<png_uint_32>(height);
  png.width = static_cast<png_uint_32>(width);
  png.format = format;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::vector<std::byte> bytes(size);
  // Without a row stride the rows follow one another; there is no color map.
  if (png_image_write_to_memory(&png, bytes.data(), &size, 0, pixels.data(), 0, nullptr) == 0) {
    throw Error("[io] making a picture of {} x {} failed: {}", height, width, png.message);
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace

std::vector<std::byte> EncodePng(const RgbImage& image) {
  return Encode(image.height, image.width, PNG_FORMAT_RGB, image.pixels);
}

void WritePng(const std::filesystem::path& path, const GrayImage& image) {
  WriteFileAtomically(path, {Encode(image.height, image.width, PNG_FORMAT_GRAY, image.pixels)});
}

void WritePng(const std::filesystem::path& path, const RgbImage& image) {
  WriteFileAtomically(path, {EncodePng(image)});
}

RgbImage ReadPng(const std::filesystem::path& path) {
  const MappedFile file(path);
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  const auto fail = [&] {
    throw InputError("[io] {}: not a PNG that can be read: {}", path.string(), png.message);
  };
  if (png_image_begin_read_from_memory(&png, file.bytes().data(), file.bytes().size()) == 0) fail();
  png.format = PNG_FORMAT_RGB;
  RgbImage image = {.height = png.height, .width = png.width, .pixels = {}};
  image.pixels.resize(static_cast<size_t>(image.height * image.width * 3));
  const png_color black = {0, 0, 0};
  if (png_image_finish_read(&png, &black, image.pixels.data(), 0, nullptr) == 0) fail();
  return image;
}

}  // namespace equitile

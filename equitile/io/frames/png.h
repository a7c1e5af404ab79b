// PNG pictures: of masks and of video frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

namespace equitile {

struct GrayImage {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> pixels;  // [height, width]; 0 is black

  GrayImage(int64_t image_height, int64_t image_width, uint8_t fill)
      : height(image_height),
        width(image_width),
        pixels(static_cast<size_t>(image_height * image_width), fill) {}

  uint8_t& At(int64_t y, int64_t x) { return pixels[static_cast<size_t>(y * width + x)]; }
};

struct RgbImage {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> pixels;  // [height, width, 3]
};

// Atomically; throws as WriteFileAtomically does.
void WritePng(const std::filesystem::path& path, const GrayImage& image);
void WritePng(const std::filesystem::path& path, const RgbImage& image);

std::vector<std::byte> EncodePng(const RgbImage& image);

// Any PNG, as 8 bits of red, green and blue, transparency on black. Throws InputError.
RgbImage ReadPng(const std::filesystem::path& path);

}  // namespace equitile

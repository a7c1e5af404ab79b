// PNG pictures: of masks now, of video frames when the model arrives.
#pragma once

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

// Atomically; throws as WriteFileAtomically does.
void WritePng(const std::filesystem::path& path, const GrayImage& image);

}  // namespace equitile

// Videos frame by frame out of a file, or pictures out of a folder: for comparing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "equitile/io/frames/png.h"

namespace equitile {

class VideoReader {
 public:
  virtual ~VideoReader() = default;

  // The next frame; false at the end. Throws InputError for what cannot be decoded, and where a
  // frame has another size than the first.
  virtual bool Next(RgbImage& frame) = 0;

  // Frames per second; nothing where the file does not say.
  virtual std::optional<double> Fps() const = 0;
};

// A video that libav can decode, or a folder of .png, in the order of their names. Throws
// InputError where there is none.
std::unique_ptr<VideoReader> OpenVideoReader(const std::filesystem::path& path);

}  // namespace equitile

// Videos frame by frame into a file that appears when it is complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace equitile {

struct VideoOptions {
  int64_t height = 0, width = 0;
  int64_t frames = 0;  // 0: not known; a picture is for exactly one
  int64_t fps = 16;
  std::optional<int64_t> crf = {};  // quality, 0 is best; nothing: near what eyes can tell
  std::string title;                // metadata; empty: none
  std::string x264_params;  // besides our own, "asm=0:..."; tests put other processors' code here
};

// The same frames and options give the same bytes, H.264 on any processor: one thread, no dates.
class VideoWriter {
 public:
  virtual ~VideoWriter() = default;  // without Finish nothing is left of it

  // rgb: [height][width][3]. Throws Error where the device fails or is full.
  virtual void Add(std::span<const uint8_t> rgb) = 0;
  // Gives the file its name. At least one frame must have been added.
  virtual void Finish() = 0;
};

// The kind is told by the name: .mp4 (H.264 where the encoder is there, else MPEG-4), .webm (VP9,
// else VP8), .gif, a number with .png, as in frames/%05d.png, or for a single frame .png, .jpg or
// .webp. Throws InputError where the name is none of these or the file cannot be written or encoded
// as asked.
std::unique_ptr<VideoWriter> OpenVideo(const std::filesystem::path& path,
                                       const VideoOptions& options);

// All that OpenVideo would refuse, before any work; leaves nothing behind.
void CheckVideoOutput(const std::filesystem::path& path, const VideoOptions& options);

// Whether VideoOptions::crf means anything for this kind.
bool HasCrf(const std::filesystem::path& path);

// The encoder that OpenVideo takes: "libx264", "png", ...
std::string VideoEncoderName(const std::filesystem::path& path);

}  // namespace equitile

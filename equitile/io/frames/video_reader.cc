#include "equitile/io/frames/video_reader.h"

#include <algorithm>
#include <string>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/io/frames/libav.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

class LibavReader final : public VideoReader {
 public:
  explicit LibavReader(const fs::path& path) : path_(path) {
    AVFormatContext* format = nullptr;
    Must(avformat_open_input(&format, path.c_str(), nullptr, nullptr));
    format_.reset(format);
    Must(avformat_find_stream_info(format, nullptr));
    const AVCodec* codec = nullptr;
    stream_ = av_find_best_stream(format, AVMEDIA_TYPE_VIDEO, -1, -1, &codec, 0);
    Must(stream_);
    codec_.reset(avcodec_alloc_context3(codec));
    Must(avcodec_parameters_to_context(codec_.get(), format->streams[stream_]->codecpar));
    codec_->thread_count = 1;
    codec_->flags |= AV_CODEC_FLAG_BITEXACT;
    Must(avcodec_open2(codec_.get(), codec, nullptr));
    packet_.reset(av_packet_alloc());
    frame_.reset(av_frame_alloc());
  }

  bool Next(RgbImage& image) override {
    while (true) {
      const int got = avcodec_receive_frame(codec_.get(), frame_.get());
      if (got == AVERROR_EOF) return false;
      if (got != AVERROR(EAGAIN)) {
        Must(got);
        Convert(image);
        return true;
      }
      SendPacket();
    }
  }

  std::optional<double> Fps() const override {
    const AVRational rate = format_->streams[stream_]->avg_frame_rate;
    if (rate.num <= 0 || rate.den <= 0) return std::nullopt;
    return av_q2d(rate);
  }

 private:
  struct CloseFormat {
    void operator()(AVFormatContext* format) const { avformat_close_input(&format); }
  };

  void Must(int result) const {
    if (result >= 0) return;
    throw InputError("[io] {}: not a video that can be read: {}", path_.string(),
                     LibavMessage(result));
  }

  // The next one of the stream; at the end of the file none, which makes the codec give what it
  // still holds.
  void SendPacket() {
    const int read = av_read_frame(format_.get(), packet_.get());
    if (read != AVERROR_EOF) Must(read);
    if (read >= 0 && packet_->stream_index != stream_) return av_packet_unref(packet_.get());
    const int sent = avcodec_send_packet(codec_.get(), read >= 0 ? packet_.get() : nullptr);
    av_packet_unref(packet_.get());
    Must(sent);
  }

  void Convert(RgbImage& image) {
    if (scale_ == nullptr) {
      width_ = frame_->width;
      height_ = frame_->height;
      const auto format = static_cast<AVPixelFormat>(frame_->format);
      scale_.reset(sws_getContext(width_, height_, format, width_, height_, AV_PIX_FMT_RGB24,
                                  kScaleFlags, nullptr, nullptr, nullptr));
      if (scale_ == nullptr) {
        throw InputError("[io] {}: colours that are not known", path_.string());
      }
      const bool bt709 = frame_->colorspace == AVCOL_SPC_BT709;
      const int* colours = sws_getCoefficients(bt709 ? SWS_CS_ITU709 : SWS_CS_DEFAULT);
      sws_setColorspaceDetails(scale_.get(), colours, frame_->color_range == AVCOL_RANGE_JPEG,
                               colours, 1, 0, 1 << 16, 1 << 16);
    }
    if (frame_->width != width_ || frame_->height != height_) {
      throw InputError("[io] {}: frames change their size from {} x {} to {} x {}", path_.string(),
                       width_, height_, frame_->width, frame_->height);
    }
    image = {.height = height_, .width = width_, .pixels = {}};
    image.pixels.resize(static_cast<size_t>(image.height * image.width * 3));
    uint8_t* rows[] = {image.pixels.data()};
    const int strides[] = {width_ * 3};
    sws_scale(scale_.get(), frame_->data, frame_->linesize, 0, height_, rows, strides);
  }

  const fs::path path_;
  std::unique_ptr<AVFormatContext, CloseFormat> format_;
  LibavPtr<AVCodecContext> codec_;
  LibavPtr<AVPacket> packet_;
  LibavPtr<AVFrame> frame_;
  LibavPtr<SwsContext> scale_;
  int stream_ = -1, width_ = 0, height_ = 0;
};

class PngReader final : public VideoReader {
 public:
  explicit PngReader(const fs::path& folder) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const fs::path& path = entry.path();
      if (path.extension() == ".png" && !path.filename().string().starts_with('.')) {
        paths_.push_back(path);
      }
    }
    std::sort(paths_.begin(), paths_.end());
    if (paths_.empty()) throw InputError("[io] {}: a folder without .png", folder.string());
  }

  bool Next(RgbImage& image) override {
    if (next_ == paths_.size()) return false;
    image = ReadPng(paths_[next_++]);
    if (next_ == 1) {
      height_ = image.height;
      width_ = image.width;
    }
    if (image.height != height_ || image.width != width_) {
      throw InputError("[io] {}: {} x {} pixels; the first one has {} x {}",
                       paths_[next_ - 1].string(), image.width, image.height, width_, height_);
    }
    return true;
  }

  std::optional<double> Fps() const override { return std::nullopt; }

 private:
  std::vector<fs::path> paths_;
  size_t next_ = 0;
  int64_t height_ = 0, width_ = 0;
};

}  // namespace

std::unique_ptr<VideoReader> OpenVideoReader(const fs::path& path) {
  av_log_set_level(AV_LOG_QUIET);  // what is wrong is in our own messages
  if (!fs::exists(path)) throw InputError("[io] {}: no such file or folder", path.string());
  if (fs::is_directory(path)) return std::make_unique<PngReader>(path);
  return std::make_unique<LibavReader>(path);
}

}  // namespace equitile

#include "equitile/io/frames/video_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/io/atomic_write.h"
#include "equitile/io/frames/clip_palette.h"
#include "equitile/io/frames/libav.h"
#include "equitile/io/frames/numbered_png.h"
#include "equitile/io/frames/png.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

struct Encoder {
  const char* name;
  AVPixelFormat pixels;
  // Quality by a constant, so that bits follow what is seen; these are near what eyes can tell.
  std::map<const char*, const char*> options;
};

struct Kind {
  const char* extension;
  const char* format;
  std::vector<Encoder> encoders;  // the first that this build of libav has
  bool is_picture = false;
};

const std::vector<Kind>& Kinds() {
  static const Encoder kJpeg = {
      "mjpeg", AV_PIX_FMT_YUVJ444P, {{"flags", "+qscale"}, {"global_quality", "236"}}};
  // x264 chooses other motion vectors with other instruction sets, and its AVX-512 code lets what
  // lies beside the picture into the choice: cpu-independent makes it leave out what does so.
  static const std::vector<Kind> kinds = {
      {".mp4",
       "mp4",
       {{"libx264",
         AV_PIX_FMT_YUV420P,
         {{"preset", "medium"}, {"crf", "17"}, {"x264-params", "cpu-independent=1"}}},
        {"mpeg4", AV_PIX_FMT_YUV420P, {{"flags", "+qscale"}, {"global_quality", "354"}}}}},
      {".webm",
       "webm",
       {{"libvpx-vp9",
         AV_PIX_FMT_YUV420P,
         {{"crf", "24"}, {"b", "0"}, {"deadline", "good"}, {"cpu-used", "4"}, {"row-mt", "0"}}},
        {"libvpx", AV_PIX_FMT_YUV420P, {{"crf", "10"}, {"b", "4M"}}}}},
      {".gif", "gif", {{"gif", AV_PIX_FMT_PAL8, {}}}},
      {".jpg", "mjpeg", {kJpeg}, true},
      {".jpeg", "mjpeg", {kJpeg}, true},
      {".webp", "webp", {{"libwebp", AV_PIX_FMT_RGB32, {{"quality", "92"}}}}, true},
  };
  return kinds;
}

std::string LowerExtension(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension;
}

// One or numbered ones; ours, not libav's. Other signs of percent are mistakes.
bool IsPng(const fs::path& path) {
  const bool is_one =
      LowerExtension(path) == ".png" && path.filename().string().find('%') == std::string::npos;
  return is_one || IsNumberedPng(path);
}

const Kind& KindOf(const fs::path& path) {
  const std::string extension = LowerExtension(path);
  for (const Kind& kind : Kinds()) {
    if (extension == kind.extension) return kind;
  }
  throw InputError(
      "[io] {}: not a name for a video; must end in .mp4, .webm or .gif, be like frames/%05d.png, "
      "or for a single frame end in .png, .jpg or .webp",
      path.string());
}

void CheckPicture(const fs::path& path, const VideoOptions& options) {
  if (IsNumberedPng(path)) return;
  const bool is_picture = LowerExtension(path) == ".png" || KindOf(path).is_picture;
  if (is_picture && path.filename().string().find('%') != std::string::npos) {
    throw InputError("[io] {}: numbered pictures are .png, with one number: {}", path.string(),
                     (path.parent_path() / "%05d.png").string());
  }
  if (!is_picture || options.frames == 1) return;
  throw InputError(
      "[io] {}: a picture holds one frame; --video-frames 1 makes one, and -o {}/%05d.png a "
      "picture of every frame",
      path.string(), path.stem().string());
}

struct FoundEncoder {
  const AVCodec* codec;
  const Encoder* encoder;
};

FoundEncoder FindEncoder(const fs::path& path) {
  const Kind& kind = KindOf(path);
  for (const Encoder& encoder : kind.encoders) {
    const AVCodec* codec = avcodec_find_encoder_by_name(encoder.name);
    if (codec != nullptr) return {codec, &encoder};
  }
  throw InputError("[io] {}: this build of libav has no encoder for {}", path.string(),
                   kind.extension);
}

// The codec, opened; throws InputError where it refuses.
LibavPtr<AVCodecContext> OpenEncoder(const fs::path& path, const VideoOptions& options,
                                     bool global_header) {
  const auto [codec, encoder] = FindEncoder(path);
  LibavPtr<AVCodecContext> context(avcodec_alloc_context3(codec));
  EQ_CHECK(context != nullptr);
  context->width = static_cast<int>(options.width);
  context->height = static_cast<int>(options.height);
  context->time_base = {1, static_cast<int>(options.fps)};
  context->framerate = {static_cast<int>(options.fps), 1};
  context->pix_fmt = encoder->pixels;
  context->thread_count = 1;
  context->flags |= AV_CODEC_FLAG_BITEXACT;
  if (encoder->pixels == AV_PIX_FMT_YUV420P) {
    context->colorspace = AVCOL_SPC_BT709;
    context->color_primaries = AVCOL_PRI_BT709;
    context->color_trc = AVCOL_TRC_BT709;
    context->color_range = AVCOL_RANGE_MPEG;
  }
  if (global_header) context->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  AVDictionary* settings = nullptr;
  for (const auto& [key, value] : encoder->options) av_dict_set(&settings, key, value, 0);
  if (options.crf) av_dict_set_int(&settings, "crf", *options.crf, 0);
  if (!options.x264_params.empty()) {
    av_dict_set(&settings, "x264-params", (":" + options.x264_params).c_str(), AV_DICT_APPEND);
  }
  const int opened = avcodec_open2(context.get(), codec, &settings);
  av_dict_free(&settings);
  if (opened < 0) {
    throw InputError("[io] {}: {} refuses {} x {} at {} frames per second: {}", path.string(),
                     encoder->name, options.width, options.height, options.fps,
                     LibavMessage(opened));
  }
  return context;
}

void CheckCrf(const fs::path& path, const VideoOptions& options) {
  if (!options.crf) return;
  if (!HasCrf(path)) {
    throw InputError("[io] {}: --crf {} is for .mp4 and .webm", path.string(), *options.crf);
  }
  const int64_t most = FindEncoder(path).encoder->name == std::string_view("libx264") ? 51 : 63;
  if (*options.crf < 0 || *options.crf > most) {
    throw InputError("[io] {}: --crf {}: must be 0 (best) to {}", path.string(), *options.crf,
                     most);
  }
}

// H.264 and its kin keep colours for 2 x 2 pixels.
void CheckSize(const fs::path& path, const VideoOptions& options) {
  constexpr int64_t kMost = 16384;
  if (options.height < 1 || options.width < 1 || options.height > kMost || options.width > kMost) {
    throw InputError("[io] {}: {} x {} pixels; must be 1 to {}", path.string(), options.width,
                     options.height, kMost);
  }
  if (options.fps < 1 || options.fps > 1000) {
    throw InputError("[io] {}: {} frames per second; must be 1 to 1000", path.string(),
                     options.fps);
  }
  CheckPicture(path, options);
  CheckCrf(path, options);
  if (IsPng(path)) return;
  // Frames stay for hundredths of a second, and players take one of them for ten.
  if (constexpr int64_t kMostOfGif = 50;
      LowerExtension(path) == ".gif" && options.fps > kMostOfGif) {
    throw InputError("[io] {}: {} frames per second; a .gif plays at most {} (.mp4 and .webm more)",
                     path.string(), options.fps, kMostOfGif);
  }
  if (FindEncoder(path).encoder->pixels == AV_PIX_FMT_YUV420P &&
      (options.width % 2 != 0 || options.height % 2 != 0)) {
    throw InputError("[io] {}: {} x {} pixels; {} needs even numbers (.gif and .png do not)",
                     path.string(), options.width, options.height, KindOf(path).extension);
  }
}

// A single picture has its own name.
fs::path PngName(const fs::path& path, int64_t number) {
  return IsNumberedPng(path) ? NumberedPng(path, number) : path;
}

// libav writes here; what the device says is kept, since muxers forget it.
class FileSink {
 public:
  explicit FileSink(const fs::path& path) : file_(path) {
    constexpr int kBuffer = 1 << 16;
    io_.reset(avio_alloc_context(static_cast<uint8_t*>(av_malloc(kBuffer)), kBuffer, 1, this,
                                 nullptr, &Write, &Seek));
    EQ_CHECK(io_ != nullptr);
  }
  AVIOContext* io() { return io_.get(); }
  void Check() const {
    if (error_ != 0) file_.Fail(error_);
  }
  void Commit() {
    avio_flush(io_.get());
    Check();
    file_.Commit();
  }

 private:
  static int Write(void* opaque, uint8_t* bytes, int count) {
    auto& self = *static_cast<FileSink*>(opaque);
    for (int done = 0; done < count;) {
      const ssize_t n = ::write(self.file_.fd(), bytes + done, static_cast<size_t>(count - done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        self.error_ = errno;
        return AVERROR(errno);
      }
      done += static_cast<int>(n);
    }
    return count;
  }
  static int64_t Seek(void* opaque, int64_t offset, int whence) {
    auto& self = *static_cast<FileSink*>(opaque);
    if (whence == AVSEEK_SIZE) return AVERROR(ENOSYS);
    const off_t at = ::lseek(self.file_.fd(), offset, whence);
    return at < 0 ? AVERROR(errno) : at;
  }

  AtomicFile file_;
  LibavPtr<AVIOContext> io_;
  int error_ = 0;
};

class LibavWriter final : public VideoWriter {
 public:
  LibavWriter(const fs::path& path, const VideoOptions& options)
      : path_(path), options_(options), sink_(path) {
    AVFormatContext* format = nullptr;
    Must(avformat_alloc_output_context2(&format, nullptr, KindOf(path).format, nullptr));
    format_.reset(format);
    format_->pb = sink_.io();
    format_->flags |= AVFMT_FLAG_BITEXACT | AVFMT_FLAG_CUSTOM_IO;
    if (!options.title.empty()) {
      av_dict_set(&format_->metadata, "title", options.title.c_str(), 0);
    }
    codec_ = OpenEncoder(path, options, (format_->oformat->flags & AVFMT_GLOBALHEADER) != 0);
    stream_ = avformat_new_stream(format_.get(), nullptr);
    EQ_CHECK(stream_ != nullptr);
    stream_->time_base = codec_->time_base;
    stream_->avg_frame_rate = codec_->framerate;
    Must(avcodec_parameters_from_context(stream_->codecpar, codec_.get()));
    MakeFrame();
    Must(avformat_write_header(format_.get(), nullptr));
    open_ = true;
  }

  // Some muxers free the packet that they hold back only with the trailer; the file goes anyway.
  ~LibavWriter() override {
    if (open_) av_write_trailer(format_.get());
  }

  void Add(std::span<const uint8_t> rgb) override {
    EQ_CHECK(static_cast<int64_t>(rgb.size()) == options_.height * options_.width * 3);
    Must(av_frame_make_writable(frame_.get()));
    if (palette_) {
      FillByPalette(rgb);
    } else {
      const uint8_t* rows[] = {rgb.data()};
      const int strides[] = {static_cast<int>(options_.width * 3)};
      sws_scale(scale_.get(), rows, strides, 0, static_cast<int>(options_.height), frame_->data,
                frame_->linesize);
    }
    frame_->pts = count_++;
    Encode(frame_.get());
  }

  // For kinds with indexed colours, before the first frame.
  void UsePalette(std::vector<Rgb> palette) { palette_.emplace(std::move(palette)); }

  void Finish() override {
    EQ_CHECK(count_ > 0);
    Encode(nullptr);
    open_ = false;
    Must(av_write_trailer(format_.get()));
    sink_.Commit();
  }

 private:
  struct FreeFormat {
    void operator()(AVFormatContext* format) const { avformat_free_context(format); }
  };

  void Must(int result) const {
    sink_.Check();
    if (result >= 0) return;
    throw Error("[io] {}: writing failed: {}", path_.string(), LibavMessage(result));
  }

  void MakeFrame() {
    frame_.reset(av_frame_alloc());
    EQ_CHECK(frame_ != nullptr);
    frame_->format = codec_->pix_fmt;
    frame_->width = codec_->width;
    frame_->height = codec_->height;
    Must(av_frame_get_buffer(frame_.get(), 0));
    if (codec_->pix_fmt == AV_PIX_FMT_PAL8) return;
    scale_.reset(sws_getContext(codec_->width, codec_->height, AV_PIX_FMT_RGB24, codec_->width,
                                codec_->height, codec_->pix_fmt, kScaleFlags, nullptr, nullptr,
                                nullptr));
    EQ_CHECK(scale_ != nullptr);
    if (codec_->pix_fmt == AV_PIX_FMT_YUV420P) {
      const int* bt709 = sws_getCoefficients(SWS_CS_ITU709);
      sws_setColorspaceDetails(scale_.get(), bt709, 1, bt709, 0, 0, 1 << 16, 1 << 16);
    }
  }

  void FillByPalette(std::span<const uint8_t> rgb) {
    palette_->Apply(rgb, options_.width, frame_->data[0], frame_->linesize[0]);
    auto* entries = reinterpret_cast<uint32_t*>(frame_->data[1]);
    std::fill_n(entries, 256, 0U);  // the rest is transparent: for pixels as in the frame before
    for (size_t i = 0; i < palette_->palette().size(); ++i) {
      const Rgb& c = palette_->palette()[i];
      entries[i] = 0xFF000000U | uint32_t{c.r} << 16 | uint32_t{c.g} << 8 | c.b;
    }
  }

  // null: what the encoder still holds.
  void Encode(const AVFrame* frame) {
    Must(avcodec_send_frame(codec_.get(), frame));
    const LibavPtr<AVPacket> packet(av_packet_alloc());
    while (true) {
      const int got = avcodec_receive_packet(codec_.get(), packet.get());
      if (got == AVERROR(EAGAIN) || got == AVERROR_EOF) return;
      Must(got);
      if (packet->duration == 0) packet->duration = 1;
      av_packet_rescale_ts(packet.get(), codec_->time_base, stream_->time_base);
      packet->stream_index = stream_->index;
      Must(av_interleaved_write_frame(format_.get(), packet.get()));
    }
  }

  const fs::path path_;
  const VideoOptions options_;
  FileSink sink_;
  std::unique_ptr<AVFormatContext, FreeFormat> format_;
  LibavPtr<AVCodecContext> codec_;
  AVStream* stream_ = nullptr;  // belongs to format_
  LibavPtr<AVFrame> frame_;
  LibavPtr<SwsContext> scale_;         // null with a palette
  std::optional<PaletteMap> palette_;  // of kinds with indexed colours
  int64_t count_ = 0;
  bool open_ = false;  // the header is written, the trailer is not
};

// Frames wait until the colours of all are known.
class GifWriter final : public VideoWriter {
 public:
  GifWriter(const fs::path& path, const VideoOptions& options) : writer_(path, options) {}

  void Add(std::span<const uint8_t> rgb) override {
    colours_.Add(rgb);
    frames_.emplace_back(rgb.begin(), rgb.end());
  }

  void Finish() override {
    constexpr size_t kColours = 255;  // and one that is transparent
    writer_.UsePalette(colours_.Palette(kColours));
    for (const std::vector<uint8_t>& frame : frames_) writer_.Add(frame);
    writer_.Finish();
  }

 private:
  LibavWriter writer_;
  ColourCounts colours_;
  std::vector<std::vector<uint8_t>> frames_;
};

// All pictures wait under temporary names until the last one is there.
class PngWriter final : public VideoWriter {
 public:
  PngWriter(const fs::path& path, const VideoOptions& options) : path_(path), options_(options) {}

  void Add(std::span<const uint8_t> rgb) override {
    EQ_CHECK(static_cast<int64_t>(rgb.size()) == options_.height * options_.width * 3);
    const std::vector<std::byte> png =
        EncodePng({options_.height, options_.width, {rgb.begin(), rgb.end()}});
    AtomicFile& file = *files_.emplace_back(
        std::make_unique<AtomicFile>(PngName(path_, static_cast<int64_t>(files_.size()))));
    for (size_t done = 0; done < png.size();) {
      const ssize_t n = ::write(file.fd(), png.data() + done, png.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) file.Fail(errno);
      done += static_cast<size_t>(n);
    }
    file.Close();
  }

  void Finish() override {
    EQ_CHECK(!files_.empty());
    for (const auto& file : files_) file->Commit();
    files_.clear();
  }

 private:
  const fs::path path_;
  const VideoOptions options_;
  std::vector<std::unique_ptr<AtomicFile>> files_;
};

}  // namespace

std::unique_ptr<VideoWriter> OpenVideo(const fs::path& path, const VideoOptions& options) {
  av_log_set_level(AV_LOG_QUIET);  // what is wrong is in our own messages
  CheckSize(path, options);
  if (IsPng(path)) return std::make_unique<PngWriter>(path, options);
  if (FindEncoder(path).encoder->pixels == AV_PIX_FMT_PAL8) {
    return std::make_unique<GifWriter>(path, options);
  }
  return std::make_unique<LibavWriter>(path, options);
}

void CheckVideoOutput(const fs::path& path, const VideoOptions& options) {
  av_log_set_level(AV_LOG_QUIET);
  CheckSize(path, options);
  if (IsPng(path)) return CheckWritable(PngName(path, 0));
  OpenEncoder(path, options, false);
  CheckWritable(path);
}

bool HasCrf(const fs::path& path) {
  if (IsPng(path)) return false;
  for (const auto& [key, value] : FindEncoder(path).encoder->options) {
    if (key == std::string_view("crf")) return true;
  }
  return false;
}

std::string VideoEncoderName(const fs::path& path) {
  return IsPng(path) ? "png" : FindEncoder(path).encoder->name;
}

}  // namespace equitile

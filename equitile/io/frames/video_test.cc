// Writing and reading videos of all kinds.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/io/frames/numbered_png.h"
#include "equitile/io/frames/video_reader.h"
#include "equitile/io/frames/video_writer.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

class VideoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("equitile_video_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  size_t Files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }
  fs::path folder_;
};

// A smooth picture that moves.
RgbImage Frame(int64_t index, int64_t height = 48, int64_t width = 64) {
  RgbImage image = {height, width, {}};
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const double phase = 0.1 * static_cast<double>(x + 2 * index);
      image.pixels.push_back(static_cast<uint8_t>(127.0 + 100.0 * std::sin(phase)));
      image.pixels.push_back(static_cast<uint8_t>(4 * y));
      image.pixels.push_back(static_cast<uint8_t>(200 - 2 * x));
    }
  }
  return image;
}

// Waves and grain, so that an encoder has many near ties to decide.
RgbImage Texture(int64_t index, int64_t height, int64_t width) {
  RgbImage image = {height, width, {}};
  const auto t = static_cast<double>(index);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const double column = 0.3 * static_cast<double>(x), row = 0.17 * static_cast<double>(y * y);
      const auto grain = static_cast<double>((7919 * x + 104729 * y + 31 * index) % 23);
      for (const double shift : {0.0, 1.0, 2.0}) {
        const double waves =
            60.0 * std::sin(column + 0.5 * t + shift) + 40.0 * std::sin(row - 0.2 * t);
        image.pixels.push_back(static_cast<uint8_t>(127.0 + waves + grain));
      }
    }
  }
  return image;
}

void Write(const fs::path& path, int64_t frames, const VideoOptions& options,
           RgbImage (*picture)(int64_t, int64_t, int64_t) = Frame) {
  const auto writer = OpenVideo(path, options);
  for (int64_t f = 0; f < frames; ++f) {
    writer->Add(picture(f, options.height, options.width).pixels);
  }
  writer->Finish();
}

std::string Bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

double MeanError(const RgbImage& a, const RgbImage& b) {
  EXPECT_EQ(a.pixels.size(), b.pixels.size());
  double sum = 0.0;
  for (size_t i = 0; i < a.pixels.size(); ++i) sum += std::abs(int{a.pixels[i]} - b.pixels[i]);
  return sum / static_cast<double>(a.pixels.size());
}

const VideoOptions kOptions = {.height = 48, .width = 64, .fps = 7, .title = {}};

TEST_F(VideoTest, FramesComeBack) {
  struct Kind {
    const char* name;
    double error;  // mean, of 255
  };
  for (const Kind& kind :
       {Kind{"a.mp4", 2.0}, Kind{"a.webm", 2.0}, Kind{"a.gif", 8.0}, Kind{"%03d.png", 0.0}}) {
    Write(folder_ / kind.name, 9, kOptions);
    const bool pictures = IsNumberedPng(kind.name);
    const auto reader = OpenVideoReader(pictures ? folder_ : folder_ / kind.name);
    RgbImage frame;
    int64_t count = 0;
    if (!pictures) EXPECT_NEAR(reader->Fps().value_or(0), 7, 0.2) << kind.name;
    for (; reader->Next(frame); ++count) {
      EXPECT_LE(MeanError(frame, Frame(count)), kind.error) << kind.name << " frame " << count;
    }
    EXPECT_EQ(count, 9) << kind.name;
  }
  EXPECT_EQ(Files(), 3u + 9u);  // and nothing temporary
}

TEST_F(VideoTest, APictureIsOneFrame) {
  struct Kind {
    const char* name;
    double error;
  };
  for (const Kind& kind :
       {Kind{"a.png", 0.0}, Kind{"a.jpg", 2.0}, Kind{"a.JPEG", 2.0}, Kind{"a.webp", 4.0}}) {
    VideoOptions options = kOptions;
    options.frames = 2;
    EXPECT_THROW(OpenVideo(folder_ / kind.name, options), InputError) << kind.name;
    EXPECT_THROW(CheckVideoOutput(folder_ / kind.name, options), InputError) << kind.name;
    options.frames = 1;
    CheckVideoOutput(folder_ / kind.name, options);
    Write(folder_ / kind.name, 1, options);
    const auto reader = OpenVideoReader(folder_ / kind.name);
    RgbImage frame;
    ASSERT_TRUE(reader->Next(frame)) << kind.name;
    EXPECT_LE(MeanError(frame, Frame(0)), kind.error) << kind.name;
    EXPECT_FALSE(reader->Next(frame)) << kind.name;
  }
  EXPECT_EQ(Files(), 4u);
}

// A clip of two colours that are far from any fixed palette.
TEST_F(VideoTest, AGifHasTheColoursOfItsClip) {
  const auto drawing = [](int64_t index, int64_t height, int64_t width) {
    RgbImage image = {height, width, {}};
    for (int64_t i = 0; i < height * width; ++i) {
      const bool inside = i % width > 10 + 5 * index;
      for (uint8_t level : {inside ? 229 : 13, inside ? 31 : 18, inside ? 36 : 71}) {
        image.pixels.push_back(level);
      }
    }
    return image;
  };
  Write(folder_ / "a.gif", 5, kOptions, drawing);
  const auto reader = OpenVideoReader(folder_ / "a.gif");
  RgbImage frame;
  for (int64_t f = 0; f < 5; ++f) {
    ASSERT_TRUE(reader->Next(frame));
    EXPECT_EQ(MeanError(frame, drawing(f, 48, 64)), 0.0) << f;
  }
}

TEST_F(VideoTest, QualityByCrf) {
  VideoOptions options = kOptions;
  for (const char* extension : {".mp4", ".webm"}) {
    std::vector<size_t> sizes;
    for (int64_t crf : {5, 50}) {
      options.crf = crf;
      const fs::path path = folder_ / fmt::format("a{}{}", crf, extension);
      Write(path, 9, options, Texture);
      sizes.push_back(Bytes(path).size());
    }
    EXPECT_GT(sizes[0], 2 * sizes[1]) << extension;
  }
  options.crf = 60;
  EXPECT_THROW(CheckVideoOutput(folder_ / "b.mp4", options), InputError);
  CheckVideoOutput(folder_ / "b.webm", options);
  for (const char* name : {"b.gif", "b.png", "%d.png", "b.jpg"}) {
    EXPECT_THROW(CheckVideoOutput(folder_ / name, options), InputError) << name;
    EXPECT_FALSE(HasCrf(name)) << name;
  }
}

TEST_F(VideoTest, SameFramesSameBytes) {
  VideoOptions options = kOptions;
  options.title = "a title";
  for (const std::string name : {"a", "b"}) {
    for (const char* extension : {".mp4", ".webm", ".gif"}) {
      Write(folder_ / (name + extension), 5, options);
    }
    ::usleep(1100 * 1000);  // whoever writes the time writes another one
  }
  for (const std::string extension : {".mp4", ".webm", ".gif"}) {
    const std::string a = Bytes(folder_ / ("a" + extension));
    EXPECT_EQ(a, Bytes(folder_ / ("b" + extension))) << extension;
    if (extension != ".gif") EXPECT_NE(a.find(options.title), std::string::npos) << extension;
  }
}

// What malloc gives next holds other bytes for every seed.
void DirtyHeap(int seed) {
  std::vector<std::unique_ptr<std::vector<uint8_t>>> blocks;
  for (size_t bytes = 32; bytes < size_t{1} << 22; bytes += bytes / 4) {
    const auto value = static_cast<uint8_t>(37 * seed + static_cast<int>(bytes % 251));
    blocks.push_back(std::make_unique<std::vector<uint8_t>>(bytes, value));
  }
}

// At sizes that are no multiples of a macroblock x264's vector code sees beyond the picture.
TEST_F(VideoTest, BytesDependOnNeitherHeapNorProcessor) {
  constexpr int64_t kFrames = 9;
  for (const auto& [width, height] :
       {std::pair{18, 34}, {34, 18}, {50, 30}, {64, 48}, {82, 66}, {112, 62}}) {
    VideoOptions options = {.height = height, .width = width};
    for (const std::string extension : {".mp4", ".webm"}) {
      options.x264_params = "asm=0";
      Write(folder_ / ("plain" + extension), kFrames, options, Texture);
      options.x264_params.clear();
      for (int seed = 0; seed < 4; ++seed) {
        DirtyHeap(seed);
        Write(folder_ / ("dirty" + extension), kFrames, options, Texture);
        EXPECT_TRUE(Bytes(folder_ / ("dirty" + extension)) ==
                    Bytes(folder_ / ("plain" + extension)))
            << width << " x " << height << extension << " after heap " << seed;
      }
    }
  }
}

TEST_F(VideoTest, OneFrameIsAVideo) {
  for (const char* name : {"a.mp4", "a.webm", "a.gif"}) {
    Write(folder_ / name, 1, kOptions);
    RgbImage frame;
    const auto reader = OpenVideoReader(folder_ / name);
    EXPECT_TRUE(reader->Next(frame)) << name;
    EXPECT_FALSE(reader->Next(frame)) << name;
  }
}

TEST_F(VideoTest, WithoutFinishNothingIsLeft) {
  for (const char* name : {"a.mp4", "a.webm", "a.gif", "%d.png"}) {
    const auto writer = OpenVideo(folder_ / name, kOptions);
    writer->Add(Frame(0).pixels);
  }
  EXPECT_EQ(Files(), 0u);
}

TEST_F(VideoTest, WhatCannotBeIsRefusedBefore) {
  const auto refused = [&](const fs::path& path, const VideoOptions& options = kOptions) {
    EXPECT_THROW(CheckVideoOutput(path, options), InputError) << path;
  };
  refused(folder_ / "a.avi");
  refused(folder_ / "a");
  refused(folder_ / "a.png");
  refused(folder_ / "%s.png");
  refused(folder_ / "missing" / "a.mp4");
  refused(folder_ / "a.gif", {.height = 4, .width = 4, .fps = 51});
  refused(folder_ / "missing" / "%05d.png");
  refused(folder_ / "a.mp4", {.height = 3, .width = 4});
  refused(folder_ / "a.mp4", {.height = 4, .width = 4, .fps = 0});
  refused(folder_ / "a.mp4", {.height = 0, .width = 4});
  CheckVideoOutput(folder_ / "a.gif", {.height = 3, .width = 5});
  for (const char* name : {"a.mp4", "a.MP4", "a.webm", "a.gif", "%05d.png"}) {
    CheckVideoOutput(folder_ / name, kOptions);
  }
  EXPECT_EQ(Files(), 0u);
}

TEST_F(VideoTest, AFullDeviceIsAnErrorAndLeavesNothing) {
  // The limit of a file's size stands for a device that is full.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 100;
  for (const char* name : {"a.mp4", "a.webm", "a.gif", "%d.png"}) {
    ::setrlimit(RLIMIT_FSIZE, &small);
    std::string message;
    try {
      Write(folder_ / name, 40, kOptions);
    } catch (const InputError&) {
      message = "an input error";
    } catch (const Error& error) {
      message = error.what();
    }
    ::setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_NE(message.find("writing failed"), std::string::npos) << name << ": " << message;
    EXPECT_EQ(Files(), 0u) << name;
  }
  fs::create_symlink("/dev/full", folder_ / "full.mp4");
  EXPECT_THROW(Write(folder_ / "full.mp4", 2, kOptions), Error);
}

TEST_F(VideoTest, WhatIsNoVideoIsRefused) {
  std::ofstream(folder_ / "a.mp4") << "not a video";
  EXPECT_THROW(OpenVideoReader(folder_ / "a.mp4"), InputError);
  EXPECT_THROW(OpenVideoReader(folder_ / "b.mp4"), InputError);
  EXPECT_THROW(OpenVideoReader(folder_), InputError);
}

TEST_F(VideoTest, PicturesOfALongerVideoGo) {
  Write(folder_ / "%d.png", 9, kOptions);
  std::ofstream(folder_ / "12.png") << "after a gap: not of that video";
  RemoveNumberedFrom(folder_ / "%d.png", 5);
  EXPECT_EQ(Files(), 6u);
}

TEST(NumberedPng, Names) {
  EXPECT_EQ(NumberedPng("f/%05d.png", 12), "f/00012.png");
  EXPECT_EQ(NumberedPng("x%dy.png", 7), "x7y.png");
  EXPECT_EQ(NumberedPng("f/%03d.PNG", 12), "f/012.PNG");
  for (const char* name : {"a.png", "png", "%5d.png", "%0d.png", "%d%d.png", "%d.jpg", "%"}) {
    EXPECT_FALSE(IsNumberedPng(name)) << name;
  }
}

}  // namespace
}  // namespace equitile

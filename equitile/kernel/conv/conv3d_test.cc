#include "equitile/kernel/conv/conv3d.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/base/rng.h"
#include "equitile/kernel/target_testing.h"
#include "equitile/tensor/tensor.h"

namespace equitile {
namespace {

// Frames with a rim of two pixels all around.
class Video {
 public:
  Video(int64_t frames, int64_t height, int64_t width, int64_t channels)
      : channels_(channels),
        pixel_(PaddedChannels(channels)),
        row_(pixel_ * (width + 4)),
        frame_(row_ * (height + 4)),
        data_(AlignedBuffer<float>::Zeroed(frame_ * frames)) {
    for (int64_t f = 0; f < frames; ++f) {
      frames_.push_back(data_.data() + f * frame_ + 2 * row_ + 2 * pixel_);
      const_frames_.push_back(frames_.back());
    }
  }
  void FillRandom(uint32_t stream, int64_t height, int64_t width) {
    Rng rng(7, stream);
    for (float* frame : frames_) {
      for (int64_t y = 0; y < height; ++y) {
        for (int64_t x = 0; x < width; ++x) {
          for (int64_t c = 0; c < channels_; ++c) frame[y * row_ + x * pixel_ + c] = rng.Normal();
        }
      }
    }
  }
  ConstFrames In(size_t first = 0, size_t count = SIZE_MAX) const {
    return {std::span(const_frames_).subspan(first, std::min(count, const_frames_.size() - first)),
            row_};
  }
  Frames Out(size_t first = 0, size_t count = SIZE_MAX) {
    return {std::span(frames_).subspan(first, std::min(count, frames_.size() - first)), row_};
  }
  float At(int64_t f, int64_t y, int64_t x, int64_t c) const {
    return frames_[static_cast<size_t>(f)][y * row_ + x * pixel_ + c];
  }
  float* Pixel(int64_t f, int64_t y, int64_t x) {
    return frames_[static_cast<size_t>(f)] + y * row_ + x * pixel_;
  }
  int64_t RowStride() const { return row_; }
  bool SameBits(const Video& other) const {
    return std::memcmp(data_.data(), other.data_.data(),
                       static_cast<size_t>(data_.size()) * sizeof(float)) == 0;
  }

 private:
  int64_t channels_, pixel_, row_, frame_;
  AlignedBuffer<float> data_;
  std::vector<float*> frames_;
  std::vector<const float*> const_frames_;
};

struct Case {
  ConvForm form = ConvForm::kDirect;
  int64_t in = 5, out = 7, frames = 2, height = 5, width = 7;
  int64_t frame_taps = 3, row_taps = 3, column_taps = 3;
  bool rounded = false;  // int16, pixels from a norm

  int64_t Scale() const { return form == ConvForm::kUpsampled ? 2 : 1; }
  std::string Name() const {
    return fmt::format("form {}{} {}->{} {}x{}x{} taps {}x{}x{}", static_cast<int>(form),
                       rounded ? " int16" : "", in, out, frames, height, width, frame_taps,
                       row_taps, column_taps);
  }
};

struct Problem {
  explicit Problem(const Case& c)
      : size(c),
        weights(DType::kF32, {c.out, c.in, c.frame_taps, c.row_taps, c.column_taps}),
        bias(static_cast<size_t>(c.out)),
        gamma(static_cast<size_t>(PaddedChannels(c.out))),
        in(c.frames + c.frame_taps - 1, c.height, c.width, c.in),
        residual(c.frames, c.height * c.Scale(), c.width * c.Scale(), c.out) {
    Rng rng(3);
    const View flat = weights.view().Reshape({weights.Elements()});
    for (int64_t i = 0; i < weights.Elements(); ++i) flat.Store(rng.Normal(), i);
    for (float& b : bias) b = rng.Normal();
    for (int64_t i = 0; i < c.out; ++i) gamma[static_cast<size_t>(i)] = rng.Normal();
    in.FillRandom(1, c.height, c.width);
    residual.FillRandom(2, c.height * c.Scale(), c.width * c.Scale());
    ThreadPool pool(2);
    if (!c.rounded) {
      packed = PackedConv(weights, bias, c.form, pool);
      return;
    }
    for (int64_t i = 0; i < c.in; ++i) in_gamma.push_back(rng.Normal());
    for (int64_t f = 0; f < c.frames + c.frame_taps - 1; ++f) {
      for (int64_t y = 0; y < c.height; ++y) {
        for (int64_t x = 0; x < c.width; ++x) NormInput(in.Pixel(f, y, x));
      }
    }
    packed.AssignRounded(weights, bias, in_gamma, pool);
  }
  void NormInput(float* pixel) const {
    double squares = 0.0;
    for (size_t i = 0; i < in_gamma.size(); ++i) squares += double{pixel[i]} * pixel[i];
    const double scale = std::sqrt(static_cast<double>(in_gamma.size()) / squares);
    for (size_t i = 0; i < in_gamma.size(); ++i)
      pixel[i] = static_cast<float>(pixel[i] * scale * in_gamma[i]);
  }
  Video Output() const {
    return Video(size.frames, size.height * size.Scale(), size.width * size.Scale(), size.out);
  }
  ConvArgs Args() const {
    return {.weights = &packed, .in = in.In(), .height = size.height, .width = size.width};
  }

  Case size;
  Tensor weights;
  std::vector<float> bias, gamma, in_gamma;
  Video in, residual;
  PackedConv packed;
};

struct Sum {
  double value = 0.0, squares = 0.0;
  double rounding = 0.0;  // variance that rounded pixels add
};

// The convolution as one would write it on paper.
Sum Exact(const Problem& p, int64_t f, int64_t y, int64_t x, int64_t o) {
  const Case& c = p.size;
  Sum sum{.value = p.bias[static_cast<size_t>(o)]};
  for (int64_t t = 0; t < c.frame_taps; ++t) {
    for (int64_t dy = 0; dy < c.row_taps; ++dy) {
      for (int64_t dx = 0; dx < c.column_taps; ++dx) {
        const int64_t yy = y + dy - c.row_taps / 2, xx = x + dx - c.column_taps / 2;
        if (yy < 0 || yy >= c.height * c.Scale() || xx < 0 || xx >= c.width * c.Scale()) continue;
        for (int64_t i = 0; i < c.in; ++i) {
          const double product = static_cast<double>(p.weights.view().Load(o, i, t, dy, dx)) *
                                 p.in.At(f + t, yy / c.Scale(), xx / c.Scale(), i);
          sum.value += product;
          sum.squares += product * product;
          if (!c.rounded) continue;
          const double unit =
              p.weights.view().Load(o, i, t, dy, dx) / p.packed.InputScales()[i];
          sum.rounding += unit * unit / 12.0;
        }
      }
    }
  }
  return sum;
}

// Sums of n products of normal numbers err like 2^-24 times the root of the sum of squares of the
// products and of the partial sums: at most sqrt(n) of the former. The transformed plane adds up
// 16 numbers each of which is a sum of 4 x 4 pixels.
//
// int16: transforms are exact, so rounded pixels err as pixels do. Weights are rounded in the
// transformed plane, where a pixel's norm is at most 4 * 8191 per frame tap; an output adds nine
// places.
double Tolerance(const Problem& p, const Sum& sum, int64_t o) {
  const double n = static_cast<double>(p.size.in * p.size.frame_taps * 9);
  double tolerance = 8.0 * 0x1p-24 * (1.0 + std::sqrt(sum.squares * n)) *
                     (p.size.form == ConvForm::kWinograd ? 4.0 : 1.0);
  if (p.size.rounded) {
    double unit = 0.0;
    for (int64_t place = 0; place < 16; ++place) {
      unit = std::max(unit, double{p.packed.SumScales()[place * PaddedChannels(p.size.out) + o]});
    }
    const double taps = static_cast<double>(p.size.frame_taps);
    const double weights = unit * 4 * 8191 * std::sqrt(9 * taps / 12.0);
    tolerance += 5.0 * std::sqrt(sum.rounding + weights * weights);
  }
  return tolerance;
}

void RunConv(const ConvArgs& args, int threads = 2) {
  ThreadPool pool(threads);
  Workspace workspace;
  Conv3d(args, pool, workspace);
}

class Conv3dTest : public testing::TargetTest {};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (ConvForm form : {ConvForm::kDirect, ConvForm::kWinograd}) {
    cases.push_back({.form = form});
    cases.push_back({.form = form, .in = 16, .out = 3, .frames = 4, .height = 1, .width = 1});
    cases.push_back({.form = form, .in = 33, .out = 40, .frames = 1, .height = 6, .width = 29});
    cases.push_back({.form = form, .in = 130, .out = 17, .frames = 2, .height = 3, .width = 4});
    cases.push_back({.form = form, .in = 8, .out = 8, .height = 13, .width = 30, .frame_taps = 1});
  }
  for (size_t i = 0, end = cases.size(); i < end; ++i) {
    cases.push_back(cases[i]);
    cases.back().rounded = true;
    if (cases[i].form != ConvForm::kWinograd) cases.pop_back();
  }
  cases.push_back({.in = 20, .out = 40, .frame_taps = 3, .row_taps = 1, .column_taps = 1});
  cases.push_back({.in = 20, .out = 4, .frame_taps = 1, .row_taps = 1, .column_taps = 1});
  cases.push_back({.in = 4, .out = 4, .width = 211, .frame_taps = 1, .row_taps = 1});
  cases.push_back({.form = ConvForm::kUpsampled, .frame_taps = 1});
  cases.push_back({.form = ConvForm::kUpsampled,
                   .in = 96,
                   .out = 48,
                   .height = 1,
                   .width = 3,
                   .frame_taps = 1});
  return cases;
}

TEST_P(Conv3dTest, AwkwardSizesAgainstDouble) {
  for (const Case& c : Cases()) {
    const Problem p(c);
    Video out = p.Output();
    ConvArgs args = p.Args();
    args.epilogue.out = out.Out();
    RunConv(args);
    for (int64_t f = 0; f < c.frames; ++f) {
      for (int64_t y = 0; y < c.height * c.Scale(); ++y) {
        for (int64_t x = 0; x < c.width * c.Scale(); ++x) {
          for (int64_t o = 0; o < PaddedChannels(c.out); ++o) {
            const Sum sum = o < c.out ? Exact(p, f, y, x, o) : Sum{};
            ASSERT_NEAR(out.At(f, y, x, o), sum.value, o < c.out ? Tolerance(p, sum, o) : 0.0)
                << c.Name() << " frame " << f << " row " << y << " column " << x << " channel "
                << o;
          }
        }
      }
    }
  }
}

TEST_P(Conv3dTest, EpilogueAddsAndNorms) {
  for (const Case& c : Cases()) {
    const Problem p(c);
    Video plain = p.Output(), out = p.Output(), normed = p.Output(), only = p.Output();
    ConvArgs args = p.Args();
    args.epilogue.out = plain.Out();
    RunConv(args);
    args.epilogue = {
        .residual = p.residual.In(), .out = out.Out(), .gamma = p.gamma, .normed = normed.Out()};
    RunConv(args);
    args.epilogue.out = {};
    args.epilogue.normed = only.Out();
    RunConv(args);
    EXPECT_TRUE(only.SameBits(normed)) << c.Name();
    for (int64_t f = 0; f < c.frames; ++f) {
      for (int64_t y = 0; y < c.height * c.Scale(); ++y) {
        for (int64_t x = 0; x < c.width * c.Scale(); ++x) {
          double squares = 0.0;
          for (int64_t o = 0; o < c.out; ++o) {
            const float sum = plain.At(f, y, x, o) + p.residual.At(f, y, x, o);
            ASSERT_EQ(out.At(f, y, x, o), sum) << c.Name();
            squares += static_cast<double>(sum) * sum;
          }
          for (int64_t o = 0; o < c.out; ++o) {
            const double n = out.At(f, y, x, o) / std::sqrt(squares) *
                             std::sqrt(static_cast<double>(c.out)) *
                             p.gamma[static_cast<size_t>(o)];
            ASSERT_NEAR(normed.At(f, y, x, o), n / (1.0 + std::exp(-n)),
                        2e-6 * (0.1 + std::fabs(n)))
                << c.Name();
          }
        }
      }
    }
  }
}

TEST_P(Conv3dTest, NormOfZeroIsZero) {
  Problem p(Case{});
  std::fill(p.bias.begin(), p.bias.end(), 0.0f);
  ThreadPool pool(1);
  p.packed = PackedConv(p.weights, p.bias, ConvForm::kWinograd, pool);
  p.in = Video(4, 5, 7, 5);
  Video normed = p.Output();
  ConvArgs args = p.Args();
  args.epilogue = {.gamma = p.gamma, .normed = normed.Out(), .silu = false};
  RunConv(args);
  for (int64_t x = 0; x < 7; ++x) {
    for (int64_t c = 0; c < 16; ++c) EXPECT_EQ(normed.At(1, 4, x, c), 0.0f);
  }
}

// Threads, frames per call and cuts of the picture, at even and odd rows, leave the same bits.
TEST_P(Conv3dTest, SameBitsHoweverItIsCut) {
  for (Case c : Cases()) {
    c.frames = 3;
    c.height += 4;
    const Problem p(c);
    Video whole = p.Output();
    ConvArgs args = p.Args();
    args.epilogue = {.residual = p.residual.In(), .gamma = p.gamma, .normed = whole.Out()};
    RunConv(args, 1);

    Video frames = p.Output();
    for (size_t f = 0; f < 3; ++f) {
      args.in = p.in.In(f, static_cast<size_t>(c.frame_taps));
      args.epilogue.residual = p.residual.In(f, 1);
      args.epilogue.normed = frames.Out(f, 1);
      RunConv(args, static_cast<int>(f) + 1);
    }
    EXPECT_TRUE(frames.SameBits(whole)) << c.Name();

    for (int64_t cut = 1; cut < 4; ++cut) {
      Video parts = p.Output();
      for (const Range rows : {Range{0, cut}, Range{cut, c.height}}) {
        const auto shifted = [&](const auto& f, int64_t scale) {
          std::vector<typename std::remove_cvref_t<decltype(f.frames)>::value_type> moved;
          for (auto* frame : f.frames) moved.push_back(frame + rows.begin * scale * f.row_stride);
          return moved;
        };
        const auto in = shifted(p.in.In(), 1);
        const auto residual = shifted(p.residual.In(), c.Scale());
        const auto out = shifted(parts.Out(), c.Scale());
        args.in.frames = in;
        args.height = rows.size();
        args.row_phase = rows.begin % 2;
        args.epilogue.residual.frames = residual;
        args.epilogue.normed = {out, parts.RowStride()};
        RunConv(args, 2);
      }
      EXPECT_TRUE(parts.SameBits(whole)) << c.Name() << " cut at " << cut;
    }
  }
}

// Weights in the memory of larger ones, from bytes at an odd address.
TEST_P(Conv3dTest, SameBitsFromAssignedWeights) {
  ThreadPool pool(2);
  const Tensor large = Tensor::Zeros(DType::kF32, {50, 140, 3, 3, 3});
  PackedConv packed(large, std::vector<float>(50, 1.0f), ConvForm::kWinograd, pool);
  for (const Case& c : Cases()) {
    const Problem p(c);
    const auto bytes = static_cast<size_t>(p.weights.Elements()) * sizeof(float);
    std::vector<std::byte> odd(bytes + 1);
    std::memcpy(odd.data() + 1, p.weights.view().Data(), bytes);
    const void* data = odd.data() + 1;
    const ConstView weights(data, DType::kF32, p.weights.shape());
    c.rounded ? packed.AssignRounded(weights, p.bias, p.in_gamma, pool)
              : packed.Assign(weights, p.bias, c.form, pool);
    Video expected = p.Output(), found = p.Output();
    ConvArgs args = p.Args();
    args.epilogue.out = expected.Out();
    RunConv(args);
    args.weights = &packed;
    args.epilogue.out = found.Out();
    RunConv(args);
    EXPECT_TRUE(found.SameBits(expected)) << c.Name();
  }
}

// Exact sums have no order: what this target gives, however it multiplies them, is what the first
// one does.
TEST_P(Conv3dTest, Int16HasTheSameBitsOnEveryTarget) {
  for (const Case& c : Cases()) {
    if (!c.rounded) continue;
    const Problem p(c);
    ConvArgs args = p.Args();
    SetTarget(CompiledTargets().front());
    Video expected = p.Output();
    args.epilogue.out = expected.Out();
    RunConv(args);
    SetTarget(GetParam());
    WithAllProducts([&] {
      Video found = p.Output();
      args.epilogue.out = found.Out();
      RunConv(args);
      EXPECT_TRUE(found.SameBits(expected)) << c.Name();
    });
  }
}

// Pixels as large as a norm lets them be, along the weights, so that sums are as large as they get.
TEST_P(Conv3dTest, Int16SumsFitAtTheTop) {
  for (const int64_t channels : {1, 7, 64}) {
    Problem p({.form = ConvForm::kWinograd, .in = channels, .out = 3, .rounded = true});
    for (int64_t o = 0; o < 3; ++o) {
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t t = 0; t < 3; ++t) {
          for (int64_t tap = 0; tap < 9; ++tap) {
            const float size = o == 2 && tap != 4 ? 0.0f : 1.0f + static_cast<float>(c % 3);
            p.weights.view().Store(o == 1 ? -size : size, o, c, t, tap / 3, tap % 3);
          }
        }
      }
    }
    for (int64_t f = 0; f < 4; ++f) {
      for (int64_t y = 0; y < p.size.height; ++y) {
        for (int64_t x = 0; x < p.size.width; ++x) {
          float* pixel = p.in.Pixel(f, y, x);
          for (int64_t c = 0; c < channels; ++c) pixel[c] = 1.0f + static_cast<float>(c % 3);
          p.in_gamma.assign(static_cast<size_t>(channels), 1.0f);
          p.NormInput(pixel);
        }
      }
    }
    ThreadPool pool(1);
    p.packed.AssignRounded(p.weights, p.bias, p.in_gamma, pool);
    WithAllProducts([&] {
      Video out = p.Output();
      ConvArgs args = p.Args();
      args.epilogue.out = out.Out();
      RunConv(args);
      for (int64_t o = 0; o < 3; ++o) {
        const Sum sum = Exact(p, 1, 2, 3, o);
        EXPECT_NEAR(out.At(1, 2, 3, o), sum.value, 2e-3 * std::fabs(sum.value)) << channels;
      }
    });
  }
}

TEST_P(Conv3dTest, WhatDoesNotFitIsRefused) {
  ThreadPool pool(1);
  const Tensor even = Tensor::Zeros(DType::kF32, {2, 2, 1, 2, 2});
  const Tensor flat = Tensor::Zeros(DType::kF32, {2, 2, 1, 1, 1});
  const Tensor deep = Tensor::Zeros(DType::kF32, {2, 2, 3, 3, 3});
  const std::vector<float> bias(2);
  EXPECT_THROW(PackedConv(even, bias, ConvForm::kDirect, pool), InputError);
  EXPECT_THROW(PackedConv(flat, bias, ConvForm::kWinograd, pool), InputError);
  EXPECT_THROW(PackedConv(deep, bias, ConvForm::kUpsampled, pool), InputError);
  EXPECT_THROW(PackedConv(deep, {}, ConvForm::kDirect, pool), InputError);
  EXPECT_THROW(PackedConv().AssignRounded(deep, bias, std::vector<float>(1), pool), InputError);
  const Problem p(Case{});
  Video out = p.Output();
  ConvArgs args = p.Args();
  EXPECT_THROW(RunConv(args), InputError);
  args.epilogue.out = out.Out(0, 1);
  EXPECT_THROW(RunConv(args), InputError);
  args.epilogue.out = out.Out();
  args.epilogue.normed = out.Out();
  EXPECT_THROW(RunConv(args), InputError);
}

EQUITILE_TEST_ON_ALL_TARGETS(Conv3dTest);

}  // namespace
}  // namespace equitile

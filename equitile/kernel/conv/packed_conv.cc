#include "equitile/kernel/conv/packed_conv.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "equitile/base/error.h"

namespace equitile {
namespace {

int64_t Variants(ConvForm form) {
  switch (form) {
    case ConvForm::kDirect:
      return 1;
    case ConvForm::kWinograd:
      return 16;
    case ConvForm::kUpsampled:
      return 4;
  }
  return 0;
}

// In the plane, of one chain.
int64_t PlaneTaps(const Shape& weights, ConvForm form) {
  switch (form) {
    case ConvForm::kDirect:
      return weights[3] * weights[4];
    case ConvForm::kWinograd:
      return 1;
    case ConvForm::kUpsampled:
      return 4;
  }
  return 0;
}

constexpr size_t kLanes = kChannelStep;  // outputs of a panel side by side
// Sums of taps are exact to double before they are rounded once.
using LaneSums = double[kLanes];

// Three taps as the four of F(2, 3).
template <typename T>
void WinogradTaps(const T* a, const T* b, const T* c, LaneSums* to) {
  for (size_t i = 0; i < kLanes; ++i) {
    const double outer = static_cast<double>(a[i]) + static_cast<double>(c[i]);
    to[0][i] = a[i];
    to[1][i] = (outer + b[i]) / 2;
    to[2][i] = (outer - b[i]) / 2;
    to[3][i] = c[i];
  }
}

// Three taps over repeated pixels as the two taps of the left (phase 0) or the right pixel.
template <typename T>
void UpsampledTap(const T* a, const T* b, const T* c, int64_t phase, int64_t tap, double* to) {
  const T* first = phase == 0 && tap == 1 ? b : phase == 1 && tap == 1 ? c : a;
  const T* second = phase == 0 && tap == 1 ? c : phase == 1 && tap == 0 ? b : nullptr;
  for (size_t i = 0; i < kLanes; ++i) {
    to[i] = static_cast<double>(first[i]) + (second == nullptr ? 0.0 : double{second[i]});
  }
}

void Round(const double* from, float* to) {
  for (size_t i = 0; i < kLanes; ++i) to[i] = static_cast<float>(from[i]);
}

// The taps of outputs [outs] of input channel c, as [taps][16]. Files align nothing.
template <typename T>
void ReadTaps(const ConstView& weights, Range outs, int64_t c, float* taps) {
  for (int64_t o = outs.begin; o < outs.end; ++o) {
    const auto* from = static_cast<const std::byte*>(weights.Address(o, c, 0, 0, 0));
    float* to = taps + (o - outs.begin);
    for (int64_t t = 0; t < weights.Extent(2); ++t) {
      for (int64_t y = 0; y < weights.Extent(3); ++y) {
        for (int64_t x = 0; x < weights.Extent(4); ++x, to += kLanes) {
          const int64_t at = t * weights.Stride(2) + y * weights.Stride(3) + x * weights.Stride(4);
          T value;
          std::memcpy(&value, from + at * int64_t{sizeof(T)}, sizeof(T));
          *to = ToFloat(value);
        }
      }
    }
  }
}

void ReadTaps(const ConstView& weights, Range outs, int64_t c, float* taps) {
  switch (weights.dtype()) {
    case DType::kF32:
      return ReadTaps<float>(weights, outs, c, taps);
    case DType::kBF16:
      return ReadTaps<Bf16>(weights, outs, c, taps);
    case DType::kF16:
      return ReadTaps<F16>(weights, outs, c, taps);
  }
}

}  // namespace

int64_t PackedConv::PackedBytes(const Shape& weights, ConvForm form) {
  const int64_t depth = weights[2] * PlaneTaps(weights, form) * PaddedChannels(weights[1]);
  return (Variants(form) * depth + 1) * PaddedChannels(weights[0]) * int64_t{sizeof(float)};
}

void PackedConv::Assign(const ConstView& weights, std::span<const float> bias, ConvForm form,
                        ThreadPool& pool) {
  if (weights.Rank() != 5 || weights.Elements() == 0) {
    throw InputError("[kernel] convolution weights {}: must be [out, in, frames, rows, columns]",
                     weights.shape().ToString());
  }
  out_ = weights.Extent(0), in_ = weights.Extent(1), frame_taps_ = weights.Extent(2);
  row_taps_ = weights.Extent(3), column_taps_ = weights.Extent(4);
  if (row_taps_ % 2 == 0 || column_taps_ % 2 == 0) {
    throw InputError("[kernel] convolution of {} x {} taps: must be odd", row_taps_, column_taps_);
  }
  if (form != ConvForm::kDirect && (row_taps_ != 3 || column_taps_ != 3)) {
    throw InputError("[kernel] convolution of {} x {} taps: this form is for 3 x 3", row_taps_,
                     column_taps_);
  }
  if (form == ConvForm::kUpsampled && frame_taps_ != 1) {
    throw InputError("[kernel] upsampled convolution of {} frames: must be 1", frame_taps_);
  }
  if (static_cast<int64_t>(bias.size()) != out_) {
    throw InputError("[kernel] convolution bias of {}: must have {} elements", bias.size(), out_);
  }
  form_ = form;
  compute_ = Compute::kF32;
  depth_ = frame_taps_ * PlaneTaps(weights.shape(), form) * PaddedChannels(in_);
  panels_.Get<float>(Variants(form) * depth_ * PaddedChannels(out_));
  float* padded_bias = bias_.Get<float>(PaddedChannels(out_));
  std::fill(std::copy(bias.begin(), bias.end(), padded_bias), padded_bias + PaddedChannels(out_),
            0.0f);
  const int64_t steps = PaddedChannels(in_) / kChannelStep;
  pool.ParallelFor(Panels() * steps, [&](int64_t task, int) {
    const int64_t panel = task / steps, first = task % steps * kChannelStep;
    const Range outs = {panel * kChannelStep, std::min(out_, (panel + 1) * kChannelStep)};
    std::vector<float> taps(static_cast<size_t>(frame_taps_ * row_taps_ * column_taps_) * kLanes);
    for (int64_t c = first; c < first + kChannelStep; ++c) {
      if (c < in_) {
        ReadTaps(weights, outs, c, taps.data());
      } else {
        std::fill(taps.begin(), taps.end(), 0.0f);
      }
      switch (form_) {
        case ConvForm::kDirect:
          PackDirect(taps.data(), panel, c);
          break;
        case ConvForm::kWinograd:
          PackWinograd(taps.data(), panel, c);
          break;
        case ConvForm::kUpsampled:
          PackUpsampled(taps.data(), panel, c);
          break;
      }
    }
  });
}

namespace {

// The largest integer of a pixel: four of them, which a transformed pixel is the sum of, fit in 16
// bits.
constexpr float kPixelTop = 8191.0f;

// What a row of integer weights may add up to, each frame tap by its norm, so that no sum over
// transformed pixels leaves int32: by Cauchy and Schwarz, one frame adds at most the product of the
// two norms. A pixel's norm is at most kPixelTop before rounding, which adds 1 here for norms that
// are computed in f32, and half a unit per channel; so does the rounding of weights.
float WeightNorms(int64_t channels, int64_t frame_taps) {
  const double halves = 0.5 * std::sqrt(static_cast<double>(channels));
  const double pixel = 4.0 * (kPixelTop + 1.0 + halves);
  return static_cast<float>(std::numeric_limits<int32_t>::max() / pixel -
                            static_cast<double>(frame_taps) * halves - 1.0);
}

// To nearest, ties to even, of |x| < 2^22.
int32_t Nearest(float x) {
  constexpr float kBig = 12582912.0f;
  return static_cast<int32_t>((x + kBig) - kBig);
}

}  // namespace

void PackedConv::AssignRounded(const ConstView& weights, std::span<const float> bias,
                               std::span<const float> gamma, ThreadPool& pool) {
  Assign(weights, bias, ConvForm::kWinograd, pool);
  if (std::ssize(gamma) < in_) {
    throw InputError("[kernel] convolution gamma of {}: must have {} elements", gamma.size(), in_);
  }
  compute_ = Compute::kInt16;
  float* scales = input_scales_.Get<float>(PaddedChannels(in_));
  sum_scales_.Get<float>(Variants(form_) * PaddedChannels(out_));
  std::vector<float> units(static_cast<size_t>(PaddedChannels(in_)));
  const float root = std::sqrt(static_cast<float>(in_));
  for (int64_t c = 0; c < PaddedChannels(in_); ++c) {
    const float most = c < in_ ? root * std::fabs(gamma[static_cast<size_t>(c)]) : 0.0f;
    // Channels that are next to nothing beside any other count as nothing.
    const bool counts = most > 0x1p-100f;
    scales[c] = counts ? kPixelTop / most : 0.0f;
    units[static_cast<size_t>(c)] = counts ? most / kPixelTop : 0.0f;
  }
  pool.ParallelFor(Variants(form_) * Panels(), [&](int64_t task, int) {
    RoundPanel(task / Panels(), task % Panels(), units.data());
  });
}

void PackedConv::RoundPanel(int64_t variant, int64_t panel, const float* units) {
  const int64_t pixel = PaddedChannels(in_);
  float* floats = At(variant, panel, 0);
  float norms[kLanes] = {}, most[kLanes] = {}, inverse[kLanes];
  for (int64_t t = 0; t < frame_taps_; ++t) {
    float squares[kLanes] = {};
    for (int64_t c = 0; c < pixel; ++c) {
      float* row = floats + (t * pixel + c) * kChannelStep;
      for (size_t i = 0; i < kLanes; ++i) {
        row[i] *= units[c];
        squares[i] += row[i] * row[i];
        most[i] = std::max(most[i], std::fabs(row[i]));
      }
    }
    for (size_t i = 0; i < kLanes; ++i) norms[i] += std::sqrt(squares[i]);
  }
  constexpr float kWordTop = std::numeric_limits<int16_t>::max();
  const float top = WeightNorms(in_, frame_taps_);
  float* scales = sum_scales_.Data<float>() + (variant * Panels() + panel) * kChannelStep;
  for (size_t i = 0; i < kLanes; ++i) {
    const float unit = std::max(norms[i] / top, most[i] / kWordTop);
    scales[i] = unit > 0x1p-120f ? unit : 0.0f;
    inverse[i] = unit > 0x1p-120f ? 1.0f / unit : 0.0f;
  }
  // A word is never behind the two rows that it is made of.
  auto* words = reinterpret_cast<int32_t*>(floats);
  for (int64_t k = 0; k < depth_ / 2; ++k) {
    for (int64_t i = 0; i < kChannelStep; ++i) {
      const auto lane = static_cast<size_t>(i);
      const auto word = [&](int64_t row) {
        float x;
        std::memcpy(&x, floats + row * kChannelStep + i, sizeof(x));
        return static_cast<uint32_t>(Nearest(x * inverse[lane]));
      };
      const uint32_t both = (word(2 * k) & 0xFFFF) | (word(2 * k + 1) << 16);
      std::memcpy(words + k * kChannelStep + i, &both, sizeof(both));
    }
  }
}

void PackedConv::PackDirect(const float* taps, int64_t panel, int64_t c) {
  for (int64_t tap = 0; tap < frame_taps_ * row_taps_ * column_taps_; ++tap) {
    std::copy_n(taps + tap * kChannelStep, kLanes, At(0, panel, tap * PaddedChannels(in_) + c));
  }
}

void PackedConv::PackWinograd(const float* taps, int64_t panel, int64_t c) {
  for (int64_t t = 0; t < frame_taps_; ++t, taps += 9 * kLanes) {
    LaneSums rows[3][4], places[4];
    for (size_t y = 0; y < 3; ++y) {
      const float* row = taps + 3 * y * kLanes;
      WinogradTaps(row, row + kLanes, row + 2 * kLanes, rows[y]);
    }
    for (size_t x = 0; x < 4; ++x) {
      WinogradTaps(rows[0][x], rows[1][x], rows[2][x], places);
      for (size_t y = 0; y < 4; ++y) {
        const auto place = static_cast<int64_t>(4 * y + x);
        Round(places[y], At(place, panel, t * PaddedChannels(in_) + c));
      }
    }
  }
}

void PackedConv::PackUpsampled(const float* taps, int64_t panel, int64_t c) {
  for (int64_t variant = 0; variant < 4; ++variant) {
    for (int64_t tap = 0; tap < 4; ++tap) {
      LaneSums rows[3], sums;
      for (size_t y = 0; y < 3; ++y) {
        const float* row = taps + 3 * y * kLanes;
        UpsampledTap(row, row + kLanes, row + 2 * kLanes, variant % 2, tap % 2, rows[y]);
      }
      UpsampledTap(rows[0], rows[1], rows[2], variant / 2, tap / 2, sums);
      Round(sums, At(variant, panel, tap * PaddedChannels(in_) + c));
    }
  }
}

}  // namespace equitile

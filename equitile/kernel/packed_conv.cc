#include "equitile/kernel/packed_conv.h"

#include <algorithm>
#include <array>

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

// Three taps as the four of F(2, 3).
std::array<double, 4> WinogradTaps(double a, double b, double c) {
  return {a, (a + b + c) / 2, (a - b + c) / 2, c};
}

// Three taps over repeated pixels as the two taps of the left (phase 0) or the right pixel.
double UpsampledTap(double a, double b, double c, int64_t phase, int64_t tap) {
  if (phase == 0) return tap == 0 ? a : b + c;
  return tap == 0 ? a + b : c;
}

}  // namespace

PackedConv::PackedConv(const ConstView& weights, std::span<const float> bias, ConvForm form,
                       ThreadPool& pool)
    : form_(form) {
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
  const int64_t plane_taps = form == ConvForm::kDirect     ? row_taps_ * column_taps_
                             : form == ConvForm::kWinograd ? 1
                                                           : 4;
  depth_ = frame_taps_ * plane_taps * PaddedChannels(in_);
  panels_ = AlignedBuffer<float>::Zeroed(Variants(form) * depth_ * PaddedChannels(out_));
  bias_ = AlignedBuffer<float>::Zeroed(PaddedChannels(out_));
  std::copy(bias.begin(), bias.end(), bias_.data());
  pool.ParallelFor(Panels() * CeilDiv(in_, kChannelStep), [&](int64_t task, int) {
    const Range outs = {task % Panels() * kChannelStep,
                        std::min(out_, (task % Panels() + 1) * kChannelStep)};
    const int64_t first = task / Panels() * kChannelStep;
    for (int64_t c = first; c < std::min(in_, first + kChannelStep); ++c) {
      for (int64_t o = outs.begin; o < outs.end; ++o) {
        switch (form_) {
          case ConvForm::kDirect:
            PackDirect(weights, o, c);
            break;
          case ConvForm::kWinograd:
            PackWinograd(weights, o, c);
            break;
          case ConvForm::kUpsampled:
            PackUpsampled(weights, o, c);
            break;
        }
      }
    }
  });
}

void PackedConv::PackDirect(const ConstView& weights, int64_t o, int64_t c) {
  for (int64_t t = 0; t < frame_taps_; ++t) {
    for (int64_t y = 0; y < row_taps_; ++y) {
      for (int64_t x = 0; x < column_taps_; ++x) {
        const int64_t tap = (t * row_taps_ + y) * column_taps_ + x;
        At(0, o, tap * PaddedChannels(in_) + c) = weights.Load(o, c, t, y, x);
      }
    }
  }
}

void PackedConv::PackWinograd(const ConstView& weights, int64_t o, int64_t c) {
  for (int64_t t = 0; t < frame_taps_; ++t) {
    std::array<std::array<double, 4>, 3> rows;
    for (int64_t y = 0; y < 3; ++y) {
      rows[static_cast<size_t>(y)] = WinogradTaps(
          weights.Load(o, c, t, y, 0), weights.Load(o, c, t, y, 1), weights.Load(o, c, t, y, 2));
    }
    for (int64_t x = 0; x < 4; ++x) {
      const auto i = static_cast<size_t>(x);
      const auto taps = WinogradTaps(rows[0][i], rows[1][i], rows[2][i]);
      for (int64_t y = 0; y < 4; ++y) {
        At(y * 4 + x, o, t * PaddedChannels(in_) + c) =
            static_cast<float>(taps[static_cast<size_t>(y)]);
      }
    }
  }
}

void PackedConv::PackUpsampled(const ConstView& weights, int64_t o, int64_t c) {
  for (int64_t variant = 0; variant < 4; ++variant) {
    for (int64_t tap = 0; tap < 4; ++tap) {
      std::array<double, 3> rows;
      for (int64_t y = 0; y < 3; ++y) {
        rows[static_cast<size_t>(y)] =
            UpsampledTap(weights.Load(o, c, 0, y, 0), weights.Load(o, c, 0, y, 1),
                         weights.Load(o, c, 0, y, 2), variant % 2, tap % 2);
      }
      At(variant, o, tap * PaddedChannels(in_) + c) =
          static_cast<float>(UpsampledTap(rows[0], rows[1], rows[2], variant / 2, tap / 2));
    }
  }
}

}  // namespace equitile

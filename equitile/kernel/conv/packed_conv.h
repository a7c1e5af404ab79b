// The weights of a convolution as the kernel reads them, in one of three forms.
#pragma once

#include <cstdint>
#include <span>

#include "equitile/base/drop_pages.h"
#include "equitile/base/growing_buffer.h"
#include "equitile/base/range.h"
#include "equitile/base/thread_pool.h"
#include "equitile/kernel/compute.h"
#include "equitile/tensor/view.h"

namespace equitile {

inline constexpr int64_t kChannelStep = 16;  // one strip of the multiply-add tile
constexpr int64_t PaddedChannels(int64_t channels) { return RoundUp(channels, kChannelStep); }

enum class ConvForm : uint8_t {
  // One chain over frame taps, row taps, column taps, channels.
  kDirect,
  // F(2x2, 3x3) of Winograd in the plane of a frame, frame taps and channels summed in the
  // transformed plane: 16 products for 4 pixels instead of 36. For 3 x 3 taps.
  kWinograd,
  // Of the picture with every pixel repeated 2 x 2: each of the four output pixels of a pixel sees
  // only 2 x 2 different ones, so their weights are added up first: 16 products instead of 36. For
  // 3 x 3 taps.
  kUpsampled,
};

// Panels of 16 outputs, [variants][panels][depth][16]: the variants are the 16 places of the
// transformed plane, or the four output pixels.
class PackedConv {
 public:
  PackedConv() = default;
  // weights: [out, in, frame taps, row taps, column taps] with odd row and column taps, f32, bf16
  // or f16, at any alignment; bias: [out]. Throws InputError where the form does not fit.
  PackedConv(const ConstView& weights, std::span<const float> bias, ConvForm form,
             ThreadPool& pool) {
    Assign(weights, bias, form, pool);
  }

  // Other weights in the memory of these, which only grows.
  void Assign(const ConstView& weights, std::span<const float> bias, ConvForm form,
              ThreadPool& pool);

  // The Winograd form in int16 (docs/design/0018-integers.md), for pixels that a norm with this
  // gamma made (ConvEpilogue), then SiLU or nothing: no channel c exceeds sqrt(in) * |gamma[c]|,
  // and no pixel, each channel in units of that, has a norm above 1. So inputs have scales that
  // depend on gamma alone, and weights can be as large as sums over all of the depth allow.
  // gamma: at least [in], finite. Takes as much memory as f32.
  void AssignRounded(const ConstView& weights, std::span<const float> bias,
                     std::span<const float> gamma, ThreadPool& pool);

  // The memory goes back to the system until the next Assign.
  void Drop() { DropPages({panels_.Data<std::byte>(), static_cast<size_t>(panels_.Bytes())}); }

  // Of weights of this shape when packed.
  static int64_t PackedBytes(const Shape& weights, ConvForm form);

  ConvForm form() const { return form_; }
  Compute compute() const { return compute_; }
  int64_t In() const { return in_; }
  int64_t Out() const { return out_; }
  int64_t FrameTaps() const { return frame_taps_; }
  int64_t RowTaps() const { return row_taps_; }
  int64_t ColumnTaps() const { return column_taps_; }
  int64_t Depth() const { return depth_; }
  int64_t Panels() const { return CeilDiv(out_, kChannelStep); }
  const float* Panel(int64_t variant, int64_t panel) const {
    return panels_.Data<float>() + (variant * Panels() + panel) * depth_ * kChannelStep;
  }
  // Of int16: words of two inputs each, [depth / 2][16].
  const int32_t* Words(int64_t variant, int64_t panel) const {
    return reinterpret_cast<const int32_t*>(Panel(variant, panel));
  }
  // Of int16: integers per unit of an input, [PaddedChannels(in)], and units per integer of a sum,
  // [variants][PaddedChannels(out)].
  const float* InputScales() const { return input_scales_.Data<float>(); }
  const float* SumScales() const { return sum_scales_.Data<float>(); }
  const float* Bias() const { return bias_.Data<float>(); }  // [PaddedChannels(out)]
  int64_t Bytes() const {
    return panels_.Bytes() + bias_.Bytes() + input_scales_.Bytes() + sum_scales_.Bytes();
  }

 private:
  // One panel of outputs, one input channel; taps: [frame][row][column][16].
  void PackDirect(const float* taps, int64_t panel, int64_t c);
  void PackWinograd(const float* taps, int64_t panel, int64_t c);
  void PackUpsampled(const float* taps, int64_t panel, int64_t c);
  // Floats of a panel become words in their place. units: of the inputs, [PaddedChannels(in)].
  void RoundPanel(int64_t variant, int64_t panel, const float* units);
  float* At(int64_t variant, int64_t panel, int64_t k) {
    return panels_.Data<float>() + ((variant * Panels() + panel) * depth_ + k) * kChannelStep;
  }

  ConvForm form_ = ConvForm::kDirect;
  Compute compute_ = Compute::kF32;
  int64_t in_ = 0, out_ = 0, frame_taps_ = 0, row_taps_ = 0, column_taps_ = 0, depth_ = 0;
  GrowingBuffer panels_, bias_, input_scales_, sum_scales_;
};

}  // namespace equitile

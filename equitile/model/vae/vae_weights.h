// The weights of a Wan autoencoder's decoder as the kernels read them. Immutable, so that the ranks
// of one process can share them.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "equitile/base/thread_pool.h"
#include "equitile/io/arrays/safetensors.h"
#include "equitile/kernel/conv/packed_conv.h"
#include "equitile/model/vae/vae_config.h"

namespace equitile {

using VaeGamma = std::vector<float>;  // [PaddedChannels(channels)]

// A convolution whose weights are kept as the kernel reads them where that is small, else packed
// from the file for every use: a use sees so many pixels that packing is little beside it.
struct VaeConv {
  int64_t Out() const { return weights.Rank() == 0 ? kept.Out() : weights.Extent(0); }
  int64_t In() const { return weights.Rank() == 0 ? kept.In() : weights.Extent(1); }
  int64_t FrameTaps() const { return weights.Rank() == 0 ? kept.FrameTaps() : weights.Extent(2); }

  PackedConv kept;
  // Where products are of int16: of the norm that makes the inputs.
  VaeGamma gamma;
  // Where it is not kept:
  ConstView weights;  // [out, in, frame taps, row taps, column taps], in the mapped file
  std::vector<float> bias;
  ConvForm form = ConvForm::kDirect;
  const StoredTensor* stored = nullptr;
};

struct VaeResnet {
  VaeGamma norm1, norm2;
  VaeConv conv1, conv2;
  VaeConv shortcut;  // 1 x 1 x 1; only where the number of channels changes

  bool HasShortcut() const { return shortcut.Out() != 0; }
};

struct VaeUpBlock {
  VaeUpBlockShape shape;
  std::vector<VaeResnet> resnets;
  std::array<VaeConv, 2> time;  // of the earlier and of the later frame
  VaeConv upsample;
};

// Packed weights of one convolution up to which they are kept: all layers of wan-mini, none of the
// 3 x 3 x 3 ones of Wan.
inline constexpr int64_t kVaeKeptBytes = int64_t{1} << 20;

struct VaeWeights {
  VaeWeights() = default;
  // Throws InputError, naming tensor, found and expected, for missing tensors, wrong shapes or
  // types (before anything is packed), and values that are not finite. Tensors of the encoder are
  // not looked at.
  // compute: kInt16 is for the 3 x 3 x 3 convolutions behind a norm, all of them but the first;
  // the others are few products and stay f32.
  VaeWeights(const VaeConfig& config, TensorFiles files, ThreadPool& pool,
             Compute compute = Compute::kF32, int64_t most_kept_bytes = kVaeKeptBytes);

  // As the kernel reads it: what is kept, or `scratch`, which then holds it.
  const PackedConv& Packed(const VaeConv& conv, PackedConv& scratch, ThreadPool& pool) const;

  int64_t Bytes() const;  // of what is kept

  VaeConfig config;
  VaeConv post_quant, conv_in;
  std::array<VaeResnet, 2> mid;
  VaeGamma attention_norm;
  VaeConv q, k, v, proj;
  std::vector<VaeUpBlock> up;
  VaeGamma norm_out;
  // The last convolution over one frame only: outputs [frame tap][channel], the bias with the
  // newest. What the frames before add to a picture is then three channels each instead of all
  // inputs, and a panel of 16 outputs holds 9 instead of 3.
  VaeConv conv_out;

 private:
  std::shared_ptr<const TensorFiles> files_;
};

// From a checkpoint's vae folder.
VaeWeights LoadVaeWeights(const std::filesystem::path& vae_folder, ThreadPool& pool,
                          Compute compute = Compute::kF32,
                          int64_t most_kept_bytes = kVaeKeptBytes);

}  // namespace equitile

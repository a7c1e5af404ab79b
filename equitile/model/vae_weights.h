// The weights of a Wan autoencoder's decoder as the kernels read them. Immutable, so that the ranks
// of one process can share them.
#pragma once

#include <array>
#include <vector>

#include "equitile/base/thread_pool.h"
#include "equitile/io/safetensors.h"
#include "equitile/kernel/packed_conv.h"
#include "equitile/model/vae_config.h"

namespace equitile {

using VaeGamma = std::vector<float>;  // [PaddedChannels(channels)]

struct VaeResnet {
  VaeGamma norm1, norm2;
  PackedConv conv1, conv2;
  PackedConv shortcut;  // 1 x 1 x 1; only where the number of channels changes

  bool HasShortcut() const { return shortcut.Out() != 0; }
};

struct VaeUpBlock {
  VaeUpBlockShape shape;
  std::vector<VaeResnet> resnets;
  std::array<PackedConv, 2> time;  // of the earlier and of the later frame
  PackedConv upsample;
};

struct VaeWeights {
  VaeWeights() = default;
  // Throws InputError, naming tensor, found and expected, for missing tensors, wrong shapes or
  // types (before anything is packed), and values that are not finite. Tensors of the encoder are
  // not looked at.
  VaeWeights(const VaeConfig& config, const TensorFiles& files, ThreadPool& pool);

  int64_t Bytes() const;

  VaeConfig config;
  PackedConv post_quant, conv_in;
  std::array<VaeResnet, 2> mid;
  VaeGamma attention_norm;
  PackedConv q, k, v, proj;
  std::vector<VaeUpBlock> up;
  VaeGamma norm_out;
  PackedConv conv_out;
};

// From a checkpoint's vae folder.
VaeWeights LoadVaeWeights(const std::filesystem::path& vae_folder, ThreadPool& pool);

}  // namespace equitile

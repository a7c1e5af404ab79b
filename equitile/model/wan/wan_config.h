// What transformer/config.json says about a Wan text-to-video transformer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "equitile/kernel/rows/patches.h"

namespace equitile {

// Defaults are those of diffusers' WanTransformer3DModel, for keys that a file leaves out.
struct WanConfig {
  PatchSize patch;
  int64_t heads = 40;
  int64_t head_dim = 128;
  int64_t in_channels = 16;
  int64_t out_channels = 16;
  int64_t text_dim = 4096;
  int64_t freq_dim = 256;
  int64_t ffn_dim = 13824;
  int64_t layers = 40;
  bool cross_attn_norm = true;
  float eps = 1e-6f;
  int64_t rope_max_seq_len = 1024;  // longest axis, in patches

  int64_t Width() const { return heads * head_dim; }
  int64_t PatchFeatures() const { return in_channels * patch.Elements(); }
  int64_t OutFeatures() const { return out_channels * patch.Elements(); }
  int64_t Parameters() const;
  friend bool operator==(const WanConfig&, const WanConfig&) = default;
};

// Unknown keys are ignored, as diffusers does. Throws InputError for another class, for
// image-to-video fields, and for sizes that cannot be.
WanConfig ReadWanConfig(const std::filesystem::path& config_json);

// "wan-1.3b" or "wan-14b", optionally with ",layers=N". Throws InputError.
WanConfig ParseWanShape(std::string_view text);

// Floating-point operations of one pass over one batch item, two per multiply-add.
struct WanFlops {
  double self_attention = 0.0, cross_attention = 0.0, linear = 0.0;
  double Attention() const { return self_attention + cross_attention; }
  double Total() const { return Attention() + linear; }
};
// text_keys: keys of cross-attention that are computed, see WanText.
WanFlops CountWanFlops(const WanConfig& config, int64_t tokens, int64_t text_keys);

// What a WanTransformer holds for so many home tokens of all batch items: hidden rows, q, k, v and
// attended rows, f32. What a tile of tokens needs besides is small.
int64_t WanActivationBytes(const WanConfig& config, int64_t home_tokens);

}  // namespace equitile

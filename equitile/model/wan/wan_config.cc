#include "equitile/model/wan/wan_config.h"

#include <charconv>

#include "equitile/base/error.h"
#include "equitile/io/records/config_file.h"
#include "equitile/kernel/rows/strips.h"

namespace equitile {
namespace {

// Far above every known model, and low enough for the bytes of the largest allowed one, its weights
// as well as its activations at the largest video, to stay below 2^62.
constexpr int64_t kMostLayers = 1000;
constexpr int64_t kMostWidth = 1 << 16;  // heads * head_dim
constexpr int64_t kMostChannels = 1 << 14;
constexpr int64_t kMostPatch = 64;      // latents of a patch
constexpr int64_t kMostSize = 1 << 20;  // of any other extent

}  // namespace

int64_t WanConfig::Parameters() const {
  const int64_t d = Width();
  auto linear = [](int64_t in, int64_t out) { return in * out + out; };
  const int64_t block = 6 * d + 8 * linear(d, d) + 4 * d + (cross_attn_norm ? 2 * d : 0) +
                        linear(d, ffn_dim) + linear(ffn_dim, d);
  return linear(PatchFeatures(), d) + linear(freq_dim, d) + linear(d, d) + linear(d, 6 * d) +
         linear(text_dim, d) + linear(d, d) + layers * block + 2 * d + linear(d, OutFeatures());
}

WanConfig ReadWanConfig(const std::filesystem::path& config_json) {
  const ConfigFile file(config_json);
  file.CheckClass("WanTransformer3DModel");
  for (const char* key : {"image_dim", "added_kv_proj_dim"}) {
    if (file.Has(key)) file.Fail(key, "image-to-video is not supported; must be null");
  }
  WanConfig config;
  const std::vector<int64_t> patch = file.Integers("patch_size", {1, 2, 2}, 1, kMostPatch);
  if (patch.size() != 3) file.Fail("patch_size", "must be [frames, height, width]");
  config.patch = {.frames = patch[0], .height = patch[1], .width = patch[2]};
  if (config.patch.Elements() > kMostPatch) {
    file.Fail("patch_size", fmt::format("must be at most {} latents together", kMostPatch));
  }
  auto size = [&](const char* key, int64_t& value) {
    value = file.Integer(key, value, 1, kMostSize);
  };
  size("num_attention_heads", config.heads);
  size("attention_head_dim", config.head_dim);
  config.in_channels = file.Integer("in_channels", config.in_channels, 1, kMostChannels);
  size("text_dim", config.text_dim);
  size("freq_dim", config.freq_dim);
  size("ffn_dim", config.ffn_dim);
  config.layers = file.Integer("num_layers", config.layers, 1, kMostLayers);
  size("rope_max_seq_len", config.rope_max_seq_len);
  // Null and 0 mean "as many as go in"; a file that leaves it out means 16, whatever goes in.
  config.out_channels =
      file.IsNull("out_channels") ? 0 : file.Integer("out_channels", 16, 0, kMostChannels);
  if (config.out_channels == 0) config.out_channels = config.in_channels;
  config.cross_attn_norm = file.Bool("cross_attn_norm", config.cross_attn_norm);
  config.eps = static_cast<float>(file.Number("eps", 1e-6, 0.0, 1.0));
  if (config.head_dim % kHeadDimStep != 0 || config.head_dim > kMaxHeadDim) {
    file.Fail("attention_head_dim",
              fmt::format("must be a multiple of {} up to {}", kHeadDimStep, kMaxHeadDim));
  }
  if (config.Width() > kMostWidth) {
    file.Fail("num_attention_heads", fmt::format("times attention_head_dim {} must be at most {}",
                                                 config.head_dim, kMostWidth));
  }
  if (config.freq_dim % 2 != 0) file.Fail("freq_dim", "must be even");
  return config;
}

WanConfig ParseWanShape(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(','));
  WanConfig config;
  if (name == "wan-1.3b") {
    config.heads = 12;
    config.ffn_dim = 8960;
    config.layers = 30;
  } else if (name != "wan-14b") {
    throw InputError("[model] shape '{}': must be wan-1.3b or wan-14b, with ,layers=N after it",
                     text);
  }
  if (name.size() == text.size()) return config;
  const std::string_view rest = text.substr(name.size() + 1), key = "layers=";
  const char* end = text.data() + text.size();
  const char* begin = rest.starts_with(key) ? rest.data() + key.size() : end;
  const auto parsed = std::from_chars(begin, end, config.layers);
  if (parsed.ec != std::errc() || parsed.ptr != end || config.layers < 1 ||
      config.layers > kMostLayers) {
    throw InputError("[model] shape '{}': after the comma must come layers=N, N from 1 to {}", text,
                     kMostLayers);
  }
  return config;
}

WanFlops CountWanFlops(const WanConfig& config, int64_t tokens, int64_t text_keys) {
  const auto d = static_cast<double>(config.Width()), n = static_cast<double>(tokens),
             layers = static_cast<double>(config.layers);
  WanFlops flops;
  flops.self_attention = layers * 4.0 * n * n * d;
  flops.cross_attention = layers * 4.0 * n * static_cast<double>(text_keys) * d;
  const double block = 6.0 * d * d + 2.0 * d * static_cast<double>(config.ffn_dim);
  const auto ends = static_cast<double>(config.PatchFeatures() + config.OutFeatures());
  flops.linear = 2.0 * n * (layers * block + d * ends);
  return flops;
}

int64_t WanActivationBytes(const WanConfig& config, int64_t home_tokens) {
  return home_tokens * 5 * config.Width() * int64_t{sizeof(float)};
}

}  // namespace equitile

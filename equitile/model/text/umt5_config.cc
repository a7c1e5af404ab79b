#include "equitile/model/text/umt5_config.h"

#include <algorithm>
#include <cmath>

#include "equitile/io/records/config_file.h"

namespace equitile {

int64_t Umt5Config::Parameters() const {
  const int64_t layer = 4 * d_model * Inner() + buckets * heads + 3 * d_model * d_ff + 2 * d_model;
  return vocab_size * d_model + layers * layer + d_model;
}

Umt5Config ReadUmt5Config(const std::filesystem::path& config_json) {
  constexpr int64_t kLargest = 1 << 20;  // keeps every product far from overflow
  const ConfigFile file(config_json);
  if (const auto type = file.FindText("model_type"); type && *type != "umt5") {
    file.Fail("model_type", "must be umt5");
  }
  const std::string forward = file.Text("feed_forward_proj", "gated-gelu");
  if (forward != "gated-gelu") file.Fail("feed_forward_proj", "must be gated-gelu");
  if (const auto act = file.FindText("dense_act_fn"); act && *act != "gelu_new") {
    file.Fail("dense_act_fn", "must be gelu_new");
  }
  if (!file.Bool("is_gated_act", true)) file.Fail("is_gated_act", "must be true");
  Umt5Config config;
  config.vocab_size = file.Integer("vocab_size", config.vocab_size, 1, int64_t{1} << 28);
  config.d_model = file.Integer("d_model", config.d_model, 1, kLargest);
  config.d_kv = file.Integer("d_kv", config.d_kv, 1, 512);  // what the attention kernel takes
  config.d_ff = file.Integer("d_ff", config.d_ff, 1, kLargest);
  config.layers = file.Integer("num_layers", config.layers, 1, 4096);
  config.heads = file.Integer("num_heads", config.heads, 1, 4096);
  config.buckets = file.Integer("relative_attention_num_buckets", config.buckets, 4, kLargest);
  config.max_distance =
      file.Integer("relative_attention_max_distance", config.max_distance, 1, kLargest);
  if (config.buckets % 4 != 0)
    file.Fail("relative_attention_num_buckets", "must be a multiple of 4");
  if (config.max_distance <= config.buckets / 4) {
    file.Fail("relative_attention_max_distance", "must be above a quarter of the buckets");
  }
  config.eps = static_cast<float>(file.Number("layer_norm_epsilon", double{config.eps}, 0.0, 1.0));
  return config;
}

int64_t RelativeBucket(const Umt5Config& config, int64_t distance) {
  const int64_t side = config.buckets / 2, exact = side / 2;
  const int64_t base = distance > 0 ? side : 0, n = std::abs(distance);
  if (n < exact) return base + n;
  // The distances at which buckets begin may be exact powers: rounding must not put them below.
  const double ratio =
      std::log(static_cast<double>(n) / static_cast<double>(exact)) /
      std::log(static_cast<double>(config.max_distance) / static_cast<double>(exact));
  const auto step =
      static_cast<int64_t>(std::floor(ratio * static_cast<double>(side - exact) + 1e-9));
  return base + std::min(exact + step, side - 1);
}

}  // namespace equitile

#include "equitile/model/vae/vae_config.h"

#include <algorithm>
#include <cmath>

#include "equitile/base/error.h"
#include "equitile/io/records/config_file.h"
#include "equitile/kernel/rows/strips.h"

namespace equitile {
namespace {

constexpr int64_t kMostChannels = 1 << 14;

const std::vector<double> kWanMean = {-0.7571, -0.7089, -0.9113, 0.1075,  -0.1745, 0.9653,
                                      -0.1517, 1.5508,  0.4134,  -0.0715, 0.5517,  -0.3632,
                                      -0.1922, -0.9497, 0.2503,  -0.2921};
const std::vector<double> kWanStd = {2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708,
                                     2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579,
                                     1.6382, 1.1253, 2.8251, 1.9160};

}  // namespace

std::vector<VaeUpBlockShape> VaeConfig::UpBlocks() const {
  const size_t count = dim_mult.size();
  std::vector<VaeUpBlockShape> blocks(count);
  int64_t in = MidChannels();
  for (size_t b = 0; b < count; ++b) {
    VaeUpBlockShape& block = blocks[b];
    block = {.in = in, .out = base_dim * dim_mult[count - 1 - b], .upsample = b + 1 < count};
    block.upsample_time = block.upsample && temporal_downsample[count - 2 - b];
    in = block.out / 2;
  }
  return blocks;
}

int64_t VaeConfig::SpatialScale() const { return int64_t{1} << (dim_mult.size() - 1); }

int64_t VaeConfig::TemporalScale() const {
  return int64_t{1} << std::count(temporal_downsample.begin(), temporal_downsample.end(), true);
}

VaeConfig ReadVaeConfig(const std::filesystem::path& config_json) {
  const ConfigFile file(config_json);
  file.CheckClass("AutoencoderKLWan");
  file.CheckUnused("is_residual");
  file.CheckUnused("patch_size");
  file.CheckUnused("attn_scales");
  VaeConfig config;
  config.base_dim = file.Integer("base_dim", config.base_dim, 1, kMostChannels);
  config.base_dim =
      file.FindInteger("decoder_base_dim", 1, kMostChannels).value_or(config.base_dim);
  config.z_dim = file.Integer("z_dim", config.z_dim, 1, kMostChannels);
  config.dim_mult = file.Integers("dim_mult", config.dim_mult, 1, kMostChannels);
  if (config.dim_mult.empty() || config.dim_mult.size() > 8) {
    file.Fail("dim_mult", "must have 1 to 8 elements");
  }
  config.res_blocks = file.Integer("num_res_blocks", config.res_blocks, 1, 100);
  config.temporal_downsample =
      file.Bools("temperal_downsample", config.temporal_downsample);  // as diffusers spells it
  if (config.temporal_downsample.size() + 1 != config.dim_mult.size()) {
    file.Fail("temperal_downsample", "must have one element less than dim_mult");
  }
  config.out_channels = file.Integer("out_channels", config.out_channels, 3, 3);
  config.latents_mean = file.Numbers("latents_mean", kWanMean);
  config.latents_std = file.Numbers("latents_std", kWanStd);
  for (const char* key : {"latents_mean", "latents_std"}) {
    const auto& values =
        key == std::string_view("latents_mean") ? config.latents_mean : config.latents_std;
    if (static_cast<int64_t>(values.size()) != config.z_dim) {
      file.Fail(key, fmt::format("must have z_dim = {} elements", config.z_dim));
    }
  }
  for (double value : config.latents_std) {
    if (!(value > 0.0)) file.Fail("latents_std", "must be above 0");
  }
  for (const VaeUpBlockShape& block : config.UpBlocks()) {
    if (block.out > kMostChannels) file.Fail("dim_mult", "too many channels");
    if (block.upsample && block.out % 2 != 0) file.Fail("dim_mult", "channels must be even");
  }
  // The middle block's attention has one head of all channels.
  if (config.MidChannels() > kMaxHeadDim) {
    file.Fail("dim_mult", fmt::format("base_dim times the last must be at most {}", kMaxHeadDim));
  }
  return config;
}

}  // namespace equitile

// What vae/config.json says about the decoder of a Wan autoencoder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace equitile {

// One up block of the decoder: residual blocks of `in`, then `out` channels, then perhaps twice the
// height and width with half the channels.
struct VaeUpBlockShape {
  int64_t in = 0, out = 0;
  bool upsample = false;       // all but the last
  bool upsample_time = false;  // also twice the frames
};

// Defaults are those of diffusers' AutoencoderKLWan, for keys that a file leaves out.
struct VaeConfig {
  int64_t base_dim = 96;  // of the decoder
  int64_t z_dim = 16;
  std::vector<int64_t> dim_mult = {1, 2, 4, 4};
  int64_t res_blocks = 2;
  std::vector<bool> temporal_downsample = {false, true, true};
  std::vector<double> latents_mean, latents_std;  // [z_dim]
  int64_t out_channels = 3;

  int64_t MidChannels() const { return base_dim * dim_mult.back(); }
  std::vector<VaeUpBlockShape> UpBlocks() const;
  int64_t SpatialScale() const;   // pixels per latent, in height and in width
  int64_t TemporalScale() const;  // frames per latent frame but the first
  int64_t Frames(int64_t latent_frames) const { return TemporalScale() * (latent_frames - 1) + 1; }
};

// Throws InputError for another class, for the residual or patched decoder of Wan 2.2, and for
// sizes that cannot be.
VaeConfig ReadVaeConfig(const std::filesystem::path& config_json);

}  // namespace equitile

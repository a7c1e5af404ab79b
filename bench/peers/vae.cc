// The decoder of a Wan autoencoder behind C functions, for diffusers_vae.py.
#include <algorithm>
#include <memory>

#include "bench/peers/peers.h"
#include "equitile/kernel/target.h"
#include "equitile/model/vae/vae_decoder.h"

namespace {

using namespace equitile;

struct Vae {
  Vae(const char* folder, int threads) : pool(threads), weights(LoadVaeWeights(folder, pool)) {}
  ThreadPool pool;
  VaeWeights weights;
};

}  // namespace

extern "C" {

// folder: with config.json and weights. Null on failure.
void* equitile_vae_new(const char* folder, int threads) {
  std::unique_ptr<Vae> vae;
  Succeeds([&] {
    ApplyTargetFromEnvironment();
    vae = std::make_unique<Vae>(folder, threads);
  });
  return vae.release();
}

// latents: [z_dim][frames][height][width]; rgb: [frames][height][width][3] of the video, or null.
// 0 on failure.
int equitile_vae_decode(void* handle, const float* latents, int64_t frames, int64_t height,
                        int64_t width, float* rgb) {
  return Succeeds([&] {
    Vae& vae = *static_cast<Vae*>(handle);
    const ConstView view(latents, {vae.weights.config.z_dim, frames, height, width});
    DecodeVideo(vae.weights, view, vae.pool, nullptr,
                [&](int64_t frame, std::span<const float> pixels) {
                  if (rgb == nullptr) return;
                  std::copy(pixels.begin(), pixels.end(),
                            rgb + frame * static_cast<int64_t>(pixels.size()));
                });
  });
}

void equitile_vae_delete(void* handle) { delete static_cast<Vae*>(handle); }

}  // extern "C"

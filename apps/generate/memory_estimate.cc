#include "apps/generate/memory_estimate.h"

#include <fstream>
#include <limits>
#include <string>

#include "equitile/base/error.h"
#include "equitile/model/sampling/denoise.h"
#include "equitile/model/vae/vae_memory.h"
#include "equitile/model/wan/wan_weights.h"

namespace equitile {
namespace {

// Estimates were within 4 % of what runs took.
constexpr double kSureOf = 0.9;

}  // namespace

int64_t AvailableBytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    int64_t kilobytes = 0;
    if (word == "MemAvailable:" && file >> kilobytes) return kilobytes * 1024;
  }
  return std::numeric_limits<int64_t>::max();
}

RunBytes CountRunBytes(const GenerateRequest& request, int64_t attention_bytes, int32_t ranks,
                       int threads) {
  const WanConfig& model = request.transformer;
  const GenerationConfig& config = request.config;
  constexpr int64_t kFloat = sizeof(float);
  int64_t home = 0;
  const int64_t tokens = VideoTokens(model, config);
  for (const Range& range : HomeTokens(config.Passes(), model.heads, tokens, 0, ranks)) {
    home += range.size();
  }
  const int64_t elements =
      model.in_channels * config.LatentFrames() * config.LatentHeight() * config.LatentWidth();
  RunBytes bytes;
  bytes.weights = WanWeights::Bytes(model, request.weights.value_or(DType::kF32));
  bytes.activations = home * (5 * model.Width() + model.OutFeatures()) * kFloat;
  bytes.attention = attention_bytes;
  bytes.latents = (4 + 2 * config.Passes()) * elements * kFloat;  // sampler history, velocities
  if (!request.tasks.front().output.empty()) {
    VaeClipShape clip{config.LatentFrames(), config.LatentHeight(), config.LatentWidth(), {}};
    if (request.flags.vae_tiling) clip.tiling = VaeTiling{};
    const VaeConfig vae = ReadVaeConfig(request.folder.Config("vae"));
    bytes.vae = PredictVaeMemory(vae, clip, ranks, threads).Total();
  }
  return bytes;
}

void CheckMemory(const GenerateRequest& request) {
  if (UnderLauncher()) return;
  const auto ranks = static_cast<int32_t>(request.flags.ranks.ranks.value_or(1));
  const int threads = ThreadsPerRank(request.flags.ranks, ranks);
  const RunBytes bytes = CountRunBytes(request, 0, ranks, threads);
  // Without a choice of weights the one that fits is taken.
  const int64_t weights =
      request.weights ? bytes.weights : WanWeights::Bytes(request.transformer, DType::kBF16);
  const auto need = static_cast<double>(kProgramBytes + weights + ranks * bytes.OwnTotal());
  const auto available = static_cast<double>(AvailableBytes());
  if (kSureOf * need <= available) return;
  throw InputError(
      "{}x{}, {} frames: need about {:.1f} GB of memory, {:.1f} GB are free; a smaller video{} or "
      "more machines (mpirun) would do (--dry-run says what takes how much)",
      request.config.width, request.config.height, request.config.frames, need * 1e-9,
      available * 1e-9, bytes.vae > need / 4 && !request.flags.vae_tiling ? ", --vae-tiling" : "");
}

}  // namespace equitile

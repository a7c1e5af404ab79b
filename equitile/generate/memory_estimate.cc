#include "equitile/generate/memory_estimate.h"

#include <fmt/format.h>

#include <fstream>
#include <limits>
#include <string>

#include "equitile/base/error.h"
#include "equitile/generate/compute_choice.h"
#include "equitile/model/sampling/denoise.h"
#include "equitile/model/vae/vae_memory.h"
#include "equitile/model/wan/wan_weights.h"

namespace equitile {
namespace {

// Estimates were within 4 % of what runs took.
constexpr double kSureOf = 0.9;

// Nothing: by free memory. Integers are as the arithmetic asks, whatever a record says beside it.
std::optional<WeightType> AskedWeights(const Recipe& recipe) {
  if (const Compute linear = ComputeOf(recipe).linear; linear != Compute::kF32)
    return IntegerWeights(linear);
  if (!recipe.IsSettled("weights")) return std::nullopt;
  const WeightType weights = ParseWeightType(recipe.Text("weights"));
  return IsInteger(weights) ? std::nullopt : std::optional(weights);
}

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
  bytes.weights = WanWeights::Bytes(
      model,
      WeightTypesOf(request.recipe, AskedWeights(request.recipe).value_or(WeightType::kF32)));
  bytes.activations = WanActivationBytes(model, home) + home * model.OutFeatures() * kFloat;
  bytes.attention = attention_bytes;
  bytes.latents = (4 + 2 * config.Passes()) * elements * kFloat;  // sampler history, velocities
  const GenerateTask& task = request.tasks.front();
  if (!task.output.empty() || task.save_latents.empty()) {  // a dry run may name neither
    VaeClipShape clip{config.LatentFrames(), config.LatentHeight(), config.LatentWidth(), {}};
    if (request.recipe.IsOn("vae_tiling")) clip.tiling = VaeTiling{};
    const VaeConfig vae = ReadVaeConfig(request.folder.Config("vae"));
    bytes.vae = PredictVaeMemory(vae, clip, ranks, threads).Total();
  }
  return bytes;
}

WeightType ChooseWeights(const GenerateRequest& request,
                         const std::function<void(std::string_view)>& say) {
  if (const auto asked = AskedWeights(request.recipe)) return *asked;
  const int64_t bytes = WanWeights::Bytes(request.transformer, WeightType::kF32);
  const int64_t available = AvailableBytes();
  if (bytes <= available / 3 * 2) return WeightType::kF32;
  say(fmt::format("weights as bf16: as f32 they take {:.1f} GB and {:.1f} GB are free",
                  static_cast<double>(bytes) * 1e-9, static_cast<double>(available) * 1e-9));
  return WeightType::kBF16;
}

void CheckMemory(const GenerateRequest& request, int32_t ranks, int threads, int64_t held) {
  const RunBytes bytes = CountRunBytes(request, 0, ranks, threads);
  // Without a choice of weights the one that fits is taken.
  const int64_t weights = WanWeights::Bytes(
      request.transformer,
      WeightTypesOf(request.recipe, AskedWeights(request.recipe).value_or(WeightType::kBF16)));
  const auto need = static_cast<double>(kProgramBytes + weights + ranks * bytes.OwnTotal());
  const auto available = static_cast<double>(AvailableBytes()) + static_cast<double>(held);
  if (kSureOf * need <= available) return;
  const bool tiling_helps =
      static_cast<double>(bytes.vae) > need / 4 && !request.recipe.IsOn("vae_tiling");
  throw InputError(
      "{}x{}, {} frames: need about {:.1f} GB of memory, {:.1f} GB are free; a smaller video{} or "
      "more machines (mpirun) would do (--dry-run says what takes how much)",
      request.config.width, request.config.height, request.config.frames, need * 1e-9,
      available * 1e-9, tiling_helps ? ", --vae-tiling" : "");
}

}  // namespace equitile

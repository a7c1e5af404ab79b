// Golden decodings, and their stages where the file has them.
#include "apps/verify/golden_file.h"
#include "apps/verify/verify_golden.h"
#include "equitile/model/golden/golden_stages.h"

namespace equitile {
namespace {

constexpr GoldenTolerance kStages{.max = 3e-5};
constexpr double kLevelsShare = 0.001;
const std::string kFile = "vae.safetensors";

VaeStages Decode(const GoldenRun& run, const Tensor& latents, Communicator* comm,
                 bool with_stages) {
  VaeDecoder decoder(run.pipeline.Vae(), latents.shape()[2], latents.shape()[3], run.pool, comm);
  return VaeStages(decoder, latents, with_stages);
}

// Of "decode_1x4x3.", what is not the clip's input or its frames.
std::vector<std::string> StagesOf(const TensorFiles& tensors, const std::string& clip) {
  std::vector<std::string> stages;
  for (const StoredTensor& tensor : tensors.tensors()) {
    if (!tensor.name.starts_with(clip)) continue;
    const std::string what = tensor.name.substr(clip.size());
    if (what != "latent" && what != "frames" && what != "frames_uint8") stages.push_back(what);
  }
  return stages;
}

void CheckClip(const GoldenRun& run, GoldenFile& golden, const std::string& clip) {
  const Tensor latents = golden.Input(clip + "latent").ToF32();
  if (latents.shape().Rank() != 4) {
    return run.report.Fail(kFile, clip + "latent", "must be [channels, frames, height, width]");
  }
  const VaeStages decoded = Decode(run, latents, &run.comm, false);
  if (!run.Leads()) return;
  golden.Near(clip + "frames", decoded.InFileLayout("frames"), kStages);
  std::vector<uint8_t> levels(decoded.frames().size());
  ToBytes(decoded.frames(), levels);
  golden.Levels(clip + "frames_uint8", levels, kLevelsShare);
  const std::vector<std::string> stages = StagesOf(golden.tensors(), clip);
  if (stages.empty()) return;
  // Ranks see their own rows of a stage only: these come from rank 0 alone.
  const VaeStages alone = Decode(run, latents, nullptr, true);
  for (const std::string& what : stages) {
    const std::vector<float> got = alone.InFileLayout(what);
    if (!got.empty()) golden.Near(clip + what, got, kStages);
  }
}

}  // namespace

void VerifyGoldenVae(const GoldenRun& run) {
  if (run.golden.Files(kFile, "").empty()) return run.report.Fail(kFile, "", "missing");
  GoldenFile golden(run.golden.root, kFile, run.report);
  for (const StoredTensor& tensor : golden.tensors().tensors()) {
    const std::string_view name = tensor.name;
    if (!name.starts_with("decode_") || !name.ends_with(".latent")) continue;
    CheckClip(run, golden, tensor.name.substr(0, name.rfind("latent")));
  }
  golden.Finish();
}

}  // namespace equitile

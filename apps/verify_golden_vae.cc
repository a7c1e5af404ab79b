// Golden decodings, and their stages where the file has them.
#include <algorithm>

#include "apps/verify_golden.h"
#include "equitile/io/safetensors.h"
#include "equitile/model/golden_stages.h"

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

bool IsFrames(const std::string& what) { return what == "frames" || what == "frames_uint8"; }

void CompareFrames(const GoldenRun& run, const StoredTensor& want, const std::string& what,
                   const VaeStages& clip) {
  if (what == "frames") return run.report.Near(kFile, want, clip.InFileLayout(what), kStages);
  std::vector<uint8_t> levels(clip.frames().size());
  ToBytes(clip.frames(), levels);
  run.report.Levels(kFile, want, levels, kLevelsShare);
}

void CheckClip(const GoldenRun& run, const TensorFiles& file, const std::string& prefix) {
  const Tensor latents = file[prefix + "latent"].ToF32();
  if (latents.shape().Rank() != 4) {
    return run.report.Fail(kFile, prefix + "latent", "must be [channels, frames, height, width]");
  }
  const VaeStages clip = Decode(run, latents, &run.comm, false);
  if (!run.Leads()) return;
  std::vector<std::string> stages;
  for (const StoredTensor& tensor : file.tensors()) {
    if (!tensor.name.starts_with(prefix)) continue;
    const std::string what = tensor.name.substr(prefix.size());
    if (IsFrames(what)) CompareFrames(run, tensor, what, clip);
    if (!IsFrames(what) && what != "latent") stages.push_back(what);
  }
  if (stages.empty()) return;
  // Ranks see their own rows of a stage only: these come from rank 0 alone.
  const VaeStages alone = Decode(run, latents, nullptr, true);
  for (const std::string& what : stages) {
    const std::vector<float> got = alone.InFileLayout(what);
    if (got.empty()) {
      run.report.Skip(kFile, prefix + what);
    } else {
      run.report.Near(kFile, file[prefix + what], got, kStages);
    }
  }
}

}  // namespace

void VerifyGoldenVae(const GoldenRun& run) {
  if (run.golden.Files(kFile, "").empty()) return run.report.Fail(kFile, "", "missing");
  const TensorFiles file = TensorFiles::OpenFile(run.golden.root / kFile);
  for (const StoredTensor& tensor : file.tensors()) {
    const std::string_view name = tensor.name;
    if (name.starts_with("encode_") && !name.ends_with(".video")) {
      run.report.Skip(kFile, tensor.name);
    }
    if (!name.starts_with("decode_") || !name.ends_with(".latent")) continue;
    CheckClip(run, file, tensor.name.substr(0, name.rfind("latent")));
  }
}

}  // namespace equitile

#include "apps/generate/sidecar.h"

#include "equitile/base/error.h"
#include "equitile/io/json_value.h"
#include "equitile/io/numbered_png.h"
#include "equitile/io/sidecar_file.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

// Sets what the command line has not.
template <typename T>
void Default(std::optional<T>& flag, T value) {
  if (!flag) flag = std::move(value);
}

}  // namespace

fs::path PictureFolder(const fs::path& output) {
  return output.has_parent_path() ? output.parent_path() : fs::path("frames");
}

fs::path SidecarPath(const fs::path& output) {
  if (IsNumberedPng(output)) {
    return fs::path(PictureFolder(output).string() + ".json");
  }
  return fs::path(output).replace_extension(".json");
}

Json SidecarParameters(const GenerateRequest& request, const GenerateTask& task, DType weights) {
  const GenerationConfig& config = request.config;
  const auto absolute = [](const fs::path& path) {
    std::error_code ignored;
    return fs::absolute(path, ignored).lexically_normal().string();
  };
  const bool fixed = request.BitsDependOnLayout();
  return {{"prompt", task.prompt},
          {"negative_prompt", config.negative_prompt},
          {"seed", task.seed},
          {"rng", NoiseKindName(config.rng)},
          {"width", config.width},
          {"height", config.height},
          {"video_frames", config.frames},
          {"fps", config.fps},
          {"steps", config.steps},
          {"cfg_scale", config.guidance},
          {"flow_shift", config.flow_shift},
          {"sampler", SamplerKindName(config.sampler)},
          {"tokenizer", request.tokenizer_name},
          {"text_rows", config.text_rows},
          {"attention", request.mask ? "mask:" + absolute(request.MaskPath()) : "dense"},
          {"mask_hash", request.mask ? Json(HashText(request.mask_hash)) : Json(nullptr)},
          {"weights", DTypeName(weights)},
          {"vae_tiling", request.flags.vae_tiling},
          // Where any layout gives these bits, the next run may choose its own.
          {"planner", fixed ? Json(request.planner) : Json()},
          {"wire", fixed ? Json(request.wire) : Json()},
          {"reproducible", fixed ? Json(request.flags.reproducible) : Json()},
          {"output", task.output.string()},
          {"save_latents", task.save_latents.string()},
          {"model", absolute(request.folder.root())},
          {"model_fingerprint", HashText(request.fingerprint)}};
}

RecordedRun ApplySidecar(const fs::path& path, GenerateFlags& flags) {
  const RecordedParameters was = ParseSidecar(ReadTextFile(path), path.string());
  RecordedRun recorded;
  if (flags.prompts.empty()) Default(flags.prompt, was.prompt);
  Default(flags.negative, was.negative_prompt);
  Default(flags.seed, was.seed);
  Default(flags.rng, was.rng);
  Default(flags.width, was.width);
  Default(flags.height, was.height);
  Default(flags.frames, was.frames);
  Default(flags.fps, was.fps);
  Default(flags.steps, was.steps);
  Default(flags.guidance, was.guidance);
  Default(flags.flow_shift, was.flow_shift);
  Default(flags.sampler, was.sampler);
  Default(flags.tokenizer, was.tokenizer);
  if (!flags.attention) {
    flags.attention = was.attention;
    recorded.mask = was.mask_hash.value_or(0);
  }
  Default(flags.weights, was.weights);
  if (was.planner) {
    Default(flags.planner, *was.planner);
    if (!UnderLauncher()) Default(flags.ranks.ranks, was.ranks);
  }
  if (was.wire) Default(flags.wire, *was.wire);
  flags.reproducible = flags.reproducible && was.reproducible;
  flags.vae_tiling = flags.vae_tiling || was.vae_tiling;
  if (flags.output.empty() && flags.save_latents.empty()) {
    flags.output = was.output;
    flags.save_latents = was.save_latents;
  }
  if (flags.model.empty()) {
    flags.model = was.model;
    recorded.model = was.model_fingerprint;
    recorded.text_rows = was.text_rows;
  }
  return recorded;
}

}  // namespace equitile

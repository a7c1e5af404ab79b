#include "apps/sidecar.h"

#include "equitile/base/error.h"
#include "equitile/io/json_value.h"
#include "equitile/io/numbered_png.h"

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
  RecordedRun recorded;
  const std::string name = path.string();
  const Json document = ParseJson(ReadTextFile(path), name);
  const JsonValue root(document, name);
  const JsonValue parameters = root["parameters"];
  const auto text = [&](const char* key) { return parameters[key].Text(); };
  const auto integer = [&](const char* key) { return parameters[key].Integer(0, INT64_MAX); };
  const auto number = [&](const char* key) { return parameters[key].Number(0, 1e9); };
  if (flags.prompts.empty()) Default(flags.prompt, text("prompt"));
  Default(flags.negative, text("negative_prompt"));
  Default(flags.seed, integer("seed"));
  Default(flags.rng, text("rng"));
  Default(flags.width, integer("width"));
  Default(flags.height, integer("height"));
  Default(flags.frames, integer("video_frames"));
  Default(flags.fps, integer("fps"));
  Default(flags.steps, integer("steps"));
  Default(flags.guidance, number("cfg_scale"));
  Default(flags.flow_shift, number("flow_shift"));
  Default(flags.sampler, text("sampler"));
  Default(flags.tokenizer, text("tokenizer"));
  if (!flags.attention) {
    flags.attention = text("attention");
    if (*flags.attention != "dense") recorded.mask = parameters["mask_hash"].Hash();
  }
  Default(flags.weights, text("weights"));
  if (const auto planner = parameters.Find("planner")) {
    Default(flags.planner, planner->Text());
    if (!UnderLauncher()) {
      Default(flags.ranks.ranks, root["run"]["ranks"].Integer(1, INT32_MAX));
    }
  }
  if (const auto wire = parameters.Find("wire")) Default(flags.wire, wire->Text());
  if (const auto same = parameters.Find("reproducible")) {
    flags.reproducible = flags.reproducible && same->Bool();
  }
  flags.vae_tiling = flags.vae_tiling || parameters["vae_tiling"].Bool();
  if (flags.output.empty() && flags.save_latents.empty()) {
    flags.output = text("output");
    flags.save_latents = text("save_latents");
  }
  if (flags.model.empty()) {
    flags.model = text("model");
    recorded.model = parameters["model_fingerprint"].Hash();
    recorded.text_rows = integer("text_rows");
  }
  return recorded;
}

}  // namespace equitile

#include "equitile/io/sidecar_file.h"

#include "equitile/io/json_value.h"

namespace equitile {
namespace {

constexpr int64_t kMaxRecordedRanks = 1024;

}  // namespace

RecordedParameters ParseSidecar(std::string_view text, std::string_view name) {
  const Json document = ParseJson(text, name);
  const JsonValue root(document, name);
  const JsonValue parameters = root["parameters"];
  const auto word = [&](const char* key) { return parameters[key].Text(); };
  const auto integer = [&](const char* key, int64_t min, int64_t max) {
    return parameters[key].Integer(min, max);
  };
  RecordedParameters recorded;
  recorded.prompt = word("prompt");
  recorded.negative_prompt = word("negative_prompt");
  recorded.seed = integer("seed", 0, INT64_MAX);
  recorded.width = integer("width", 0, INT32_MAX);
  recorded.height = integer("height", 0, INT32_MAX);
  recorded.frames = integer("video_frames", 0, INT32_MAX);
  recorded.fps = integer("fps", 1, kMaxFps);
  recorded.steps = integer("steps", 1, kMaxSteps);
  recorded.guidance = parameters["cfg_scale"].Number(0, kMaxGuidance);
  recorded.flow_shift = parameters["flow_shift"].Number(kMinFlowShift, kMaxFlowShift);
  recorded.rng = word("rng");
  recorded.sampler = word("sampler");
  recorded.tokenizer = word("tokenizer");
  recorded.attention = word("attention");
  recorded.weights = word("weights");
  recorded.text_rows = integer("text_rows", 1, INT32_MAX);
  recorded.vae_tiling = parameters["vae_tiling"].Bool();
  if (const auto planner = parameters.Find("planner")) {
    recorded.planner = planner->Text();
    const JsonValue run = root["run"];
    recorded.ranks = run["ranks"].Integer(1, kMaxRecordedRanks);
  }
  if (const auto wire = parameters.Find("wire")) recorded.wire = wire->Text();
  if (const auto same = parameters.Find("reproducible")) recorded.reproducible = same->Bool();
  recorded.output = word("output");
  recorded.save_latents = word("save_latents");
  recorded.model = word("model");
  recorded.model_fingerprint = parameters["model_fingerprint"].Hash();
  if (recorded.attention != "dense") recorded.mask_hash = parameters["mask_hash"].Hash();
  return recorded;
}

}  // namespace equitile

// Golden runs: prompt to frames, as diffusers' WanPipeline made them.
#include <set>

#include "apps/verify/golden_file.h"
#include "apps/verify/verify_golden.h"
#include "equitile/base/error.h"
#include "equitile/io/json_value.h"
#include "equitile/model/golden/golden_stages.h"
#include "equitile/model/text/text_clean.h"
#include "equitile/model/text/tokenizer.h"
#include "equitile/model/vae/vae_decoder.h"

namespace equitile {
namespace {

constexpr GoldenTolerance kEmbeddings{.max = 2e-5, .absolute = true};
constexpr GoldenTolerance kNoise{.max = 1e-6, .absolute = true};
constexpr GoldenTolerance kLatents{.max = 3e-4, .l2 = 5e-5};
constexpr double kLevelsShare = 0.003;

// pipeline_<run>.json
struct RunRequest {
  std::string prompt;
  GenerationConfig config;
  std::vector<int32_t> prompt_ids, negative_prompt_ids;
};

SamplerKind SamplerOf(const JsonValue& scheduler) {
  const std::string name = scheduler.Text();
  if (name == "unipc" || name == "unipc_a") return SamplerKind::kUniPc;
  if (name == "unipc_b") return SamplerKind::kUniPcB;
  if (name == "euler") return SamplerKind::kEuler;
  scheduler.Fail("must be unipc, unipc_b or euler");
}

RunRequest ReadRun(const std::filesystem::path& path, const std::string& name) {
  constexpr int64_t kLargest = 1 << 20;
  const Json document = ParseJson(ReadTextFile(path), name);
  const JsonValue root(document, name);
  const JsonValue arguments = root["arguments"];
  RunRequest run;
  run.prompt = arguments["prompt"].Text();
  GenerationConfig& config = run.config;
  if (const auto negative = arguments.Find("negative_prompt")) {
    config.negative_prompt = negative->Text();
  }
  config.height = arguments["height"].Integer(1, kLargest);
  config.width = arguments["width"].Integer(1, kLargest);
  config.frames = RoundedFrames(arguments["num_frames"].Integer(1, kLargest));
  config.steps = arguments["num_inference_steps"].Integer(1, kLargest);
  config.guidance = arguments["guidance_scale"].Number(0, 1e6);
  config.text_rows = arguments["max_sequence_length"].Integer(2, kLargest);
  config.seed = static_cast<uint64_t>(root["seed"].Integer(0, INT64_MAX));
  config.sampler = SamplerOf(root["scheduler"]);
  config.flow_shift = root["shift"].Number(1e-6, 1e6);
  run.prompt_ids = root["prompt_ids"].Integers(0, INT32_MAX);
  if (const auto ids = root.Find("negative_prompt_ids")) {
    run.negative_prompt_ids = ids->Integers(0, INT32_MAX);
  }
  return run;
}

std::span<const float> Floats(const Tensor& tensor) {
  return {tensor.DataAs<float>(), static_cast<size_t>(tensor.Elements())};
}

// The ids as the pipeline's own tokenizer gives them.
void CheckIds(const GoldenRun& run, const RunRequest& request, const std::string& file) {
  const Tokenizer tokenizer =
      Tokenizer::Open(run.golden.checkpoint.Part("tokenizer"), TokenizerKind::kTransformers5);
  const auto check = [&](const char* name, const std::vector<int32_t>& want,
                         const std::string& prompt) {
    const auto got = tokenizer.Encode(CleanPrompt(prompt), request.config.text_rows);
    run.report.Equal(file, name, std::vector<int64_t>(want.begin(), want.end()),
                     std::vector<int64_t>(got.begin(), got.end()));
  };
  check("prompt_ids", request.prompt_ids, request.prompt);
  if (request.config.Passes() == 1) return;
  check("negative_prompt_ids", request.negative_prompt_ids, request.config.negative_prompt);
}

std::vector<float> Denormalised(std::span<const float> latents, const VaeConfig& config) {
  std::vector<float> out(latents.begin(), latents.end());
  const size_t plane = out.size() / static_cast<size_t>(config.z_dim);
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t channel = i / plane;
    out[i] = out[i] * static_cast<float>(config.latents_std[channel]) +
             static_cast<float>(config.latents_mean[channel]);
  }
  return out;
}

// Collective.
void CheckFrames(const GoldenRun& run, const RunRequest& request, std::span<const float> latents,
                 GoldenFile& golden) {
  std::vector<float> frames;  // [F][H][W][3]
  run.pipeline.Decode(request.config, latents, [&](int64_t, std::span<const float> rgb) {
    frames.insert(frames.end(), rgb.begin(), rgb.end());
  });
  if (!run.Leads()) return;
  std::vector<uint8_t> levels(frames.size());
  ToBytes(frames, levels);
  golden.Levels("frames_uint8", levels, kLevelsShare);
  if (golden.Has("frames")) golden.Near("frames", ChannelsFirst(frames, 3), kLatents);
}

// What is seen of the steps, on rank 0.
struct Steps {
  std::vector<float> velocity, latents;          // of all steps
  std::vector<std::vector<float>> first_passes;  // before guidance

  void Add(const DenoiseStep& step) {
    velocity.insert(velocity.end(), step.velocity.begin(), step.velocity.end());
    latents.insert(latents.end(), step.latents.begin(), step.latents.end());
    if (step.done > 1) return;
    for (const Tensor& pass : step.passes) {
      const std::span<const float> values = Floats(pass);
      first_passes.emplace_back(values.begin(), values.end());
    }
  }
};

void CheckSteps(const GoldenRun& run, const RunRequest& request, const Steps& steps,
                GoldenFile& golden) {
  const GenerationConfig& config = request.config;
  const Schedule schedule = MakeSchedule(config.sampler, config.steps, config.flow_shift);
  golden.Equal("timesteps", schedule.timesteps);
  golden.Equal("sigmas", schedule.sigmas);
  std::vector<float> noise(steps.first_passes.at(0).size());
  FillNoise(config.rng, config.seed, noise);
  golden.Near("noise", noise, kNoise);
  const char* const names[] = {"step0.cond", "step0.uncond"};
  for (size_t i = 0; i < steps.first_passes.size(); ++i) {
    golden.Near(names[i], steps.first_passes[i], kLatents);
  }
  golden.Near("velocity", steps.velocity, kLatents);
  golden.Near("latents", steps.latents, kLatents);
  const auto last = std::span(steps.latents).last(noise.size());
  golden.Near("vae_input", Denormalised(last, run.pipeline.Vae().config), kLatents);
}

// Collective.
void CheckRun(const GoldenRun& run, const RunRequest& request, GoldenFile& golden) {
  const GenerationConfig& config = request.config;
  CheckSizes(config);
  if (run.Leads()) CheckIds(run, request, golden.name());
  std::vector<std::string> prompts = {request.prompt};
  if (config.Passes() == 2) prompts.push_back(config.negative_prompt);
  const std::vector<PromptRows> rows = run.pipeline.Encode(prompts, config.text_rows);
  const char* const names[] = {"prompt_embeds", "negative_prompt_embeds"};
  for (size_t i = 0; i < rows.size() && run.Leads(); ++i) {
    golden.Near(names[i], Floats(rows[i]), kEmbeddings);
  }
  Steps steps;
  DenoiseHooks hooks;
  hooks.after_step = [&](const DenoiseStep& step) { steps.Add(step); };
  const DenoiseResult result = run.pipeline.Denoise(config, rows.front(), rows.back(), hooks);
  if (run.Leads()) CheckSteps(run, request, steps, golden);
  CheckFrames(run, request, result.latents, golden);
}

}  // namespace

void VerifyGoldenRuns(const GoldenRun& run) {
  const auto has = [&](const std::string& name) {
    return std::filesystem::exists(run.golden.root / name);
  };
  std::set<std::string> stems;
  for (const std::string ending : {".json", ".safetensors"}) {
    for (const std::string& name : run.golden.Files("pipeline_", ending)) {
      stems.insert(name.substr(0, name.size() - ending.size()));
    }
  }
  if (stems.empty()) return run.report.Fail("pipeline_*.json", "", "missing");
  for (const std::string& stem : stems) {
    const std::string request = stem + ".json", tensors = stem + ".safetensors";
    if (!has(request) || !has(tensors)) {
      run.report.Fail(has(request) ? tensors : request, "", "missing");
      continue;
    }
    GoldenFile golden(run.golden.root, tensors, run.report);
    CheckRun(run, ReadRun(run.golden.root / request, request), golden);
    golden.Finish();
  }
}

}  // namespace equitile

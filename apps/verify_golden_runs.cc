// Golden runs: prompt to frames, as diffusers' WanPipeline made them.
#include <fmt/format.h>

#include "apps/golden_models.h"
#include "apps/verify_golden.h"
#include "equitile/base/error.h"
#include "equitile/io/json_value.h"
#include "equitile/io/safetensors.h"
#include "equitile/model/denoise.h"
#include "equitile/model/text_clean.h"
#include "equitile/model/tokenizer.h"
#include "equitile/model/umt5.h"
#include "equitile/model/vae_decoder.h"

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

class RunCheck {
 public:
  RunCheck(const std::string& name, const TensorFiles& file, GoldenReport& report)
      : name_(name), file_(file), report_(report) {}

  void Ids(const std::string& what, const std::vector<int32_t>& want,
           const std::vector<int32_t>& got) {
    report_.Equal(name_, what, std::vector<int64_t>(want.begin(), want.end()),
                  std::vector<int64_t>(got.begin(), got.end()));
  }
  void Near(const std::string& what, std::span<const float> got, const GoldenTolerance& tolerance) {
    if (const StoredTensor* want = file_.Find(what)) report_.Near(name_, *want, got, tolerance);
  }
  void Equal(const std::string& what, std::span<const float> got) {
    if (const StoredTensor* want = file_.Find(what)) report_.Equal(name_, *want, got);
  }
  void Levels(std::span<const float> rgb) {
    const StoredTensor* want = file_.Find("frames_uint8");
    if (want == nullptr) return;
    std::vector<uint8_t> levels(rgb.size());
    ToBytes(rgb, levels);
    report_.Levels(name_, *want, levels, kLevelsShare);
  }

 private:
  const std::string name_;
  const TensorFiles& file_;
  GoldenReport& report_;
};

// All that runs share.
struct Pipeline {
  Pipeline(const CheckpointFolder& checkpoint, ThreadPool& threads)
      : pool(threads),
        tokenizer(Tokenizer::Open(checkpoint.Part("tokenizer"), TokenizerKind::kTransformers5)),
        encoder(checkpoint.Part("text_encoder")),
        model(checkpoint, threads),
        transformer(model.config, model.weights, threads),
        vae(LoadVaeWeights(checkpoint.Part("vae"), threads)) {}

  ThreadPool& pool;
  Tokenizer tokenizer;
  Umt5Encoder encoder;
  GoldenTransformer model;
  WanTransformer transformer;
  VaeWeights vae;
};

// The prompt's keys and values, then the negative prompt's where guidance needs them.
std::vector<WanText> EncodeTexts(Pipeline& pipeline, const RunRequest& run, RunCheck& check) {
  const int64_t rows = run.config.text_rows;
  std::vector<std::vector<int32_t>> ids = {
      pipeline.tokenizer.Encode(CleanPrompt(run.prompt), rows)};
  check.Ids("prompt_ids", run.prompt_ids, ids[0]);
  if (run.config.Passes() == 2) {
    ids.push_back(pipeline.tokenizer.Encode(CleanPrompt(run.config.negative_prompt), rows));
    check.Ids("negative_prompt_ids", run.negative_prompt_ids, ids[1]);
  }
  const std::vector<Tensor> embedded = pipeline.encoder.Encode(ids, pipeline.pool);
  std::vector<WanText> texts;
  const char* const names[] = {"prompt_embeds", "negative_prompt_embeds"};
  for (size_t i = 0; i < embedded.size(); ++i) {
    check.Near(names[i], Floats(embedded[i]), kEmbeddings);
    texts.push_back(pipeline.transformer.Text(embedded[i], rows));
  }
  return texts;
}

// Schedule, noise, and the two passes of the first step.
void CheckFirstStep(Pipeline& pipeline, const RunRequest& run, const std::vector<WanText>& texts,
                    RunCheck& check) {
  const GenerationConfig& config = run.config;
  const Schedule schedule = MakeSchedule(config.sampler, config.steps, config.flow_shift);
  check.Equal("timesteps", schedule.timesteps);
  check.Equal("sigmas", schedule.sigmas);
  Tensor noise(DType::kF32, {pipeline.model.config.in_channels, config.LatentFrames(),
                             config.LatentHeight(), config.LatentWidth()});
  FillNoise(config.rng, config.seed,
            {noise.DataAs<float>(), static_cast<size_t>(noise.Elements())});
  check.Near("noise", Floats(noise), kNoise);
  const char* const names[] = {"step0.cond", "step0.uncond"};
  for (size_t i = 0; i < texts.size(); ++i) {
    const Tensor velocity =
        RunGoldenPass(pipeline.transformer, noise, texts[i], schedule.timesteps[0], pipeline.pool);
    check.Near(names[i], Floats(velocity), kLatents);
  }
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

void CheckFrames(const Pipeline& pipeline, const RunRequest& run, std::span<const float> latents,
                 Communicator& comm, RunCheck& check) {
  const GenerationConfig& config = run.config;
  std::vector<float> frames;  // [F][H][W][3]
  const auto sink = [&](int64_t, std::span<const float> rgb) {
    frames.insert(frames.end(), rgb.begin(), rgb.end());
  };
  const ConstView view(latents.data(),
                       Shape{pipeline.model.config.in_channels, config.LatentFrames(),
                             config.LatentHeight(), config.LatentWidth()});
  DecodeVideo(pipeline.vae, view, pipeline.pool, &comm, sink);
  if (comm.rank() != 0) return;
  check.Levels(frames);
  std::vector<float> channels_first(frames.size());
  const size_t pixels = frames.size() / 3;
  for (size_t i = 0; i < frames.size(); ++i) channels_first[i % 3 * pixels + i / 3] = frames[i];
  check.Near("frames", channels_first, kLatents);
}

void CheckRun(Pipeline& pipeline, const RunRequest& run, Communicator& comm, RunCheck& check) {
  CheckSizes(run.config);
  const std::vector<WanText> texts = EncodeTexts(pipeline, run, check);
  CheckFirstStep(pipeline, run, texts, check);
  std::vector<const WanText*> views;
  for (const WanText& text : texts) views.push_back(&text);
  const WanConfig& model = pipeline.model.config;
  LocalAttention attention({.batch = run.config.Passes(), .heads = model.heads},
                           VideoTokens(model, run.config), model.head_dim, pipeline.pool);
  std::vector<float> latents, velocities;
  const auto after = [&](const DenoiseStep& step) {
    latents.insert(latents.end(), step.latents.begin(), step.latents.end());
    velocities.insert(velocities.end(), step.velocity.begin(), step.velocity.end());
  };
  DenoiseJob job;
  job.config = run.config;
  job.texts = views;
  job.attention = SelfAttention(attention);
  job.after_step = after;
  const DenoiseResult result = Denoise(pipeline.transformer, comm, job);
  check.Near("velocity", velocities, kLatents);
  check.Near("latents", latents, kLatents);
  check.Near("vae_input", Denormalised(result.latents, pipeline.vae.config), kLatents);
  CheckFrames(pipeline, run, result.latents, comm, check);
}

}  // namespace

void VerifyGoldenRuns(const GoldenFolder& golden, Communicator& comm, ThreadPool& pool,
                      GoldenReport& report) {
  const auto names = golden.Files("pipeline_", ".json");
  if (names.empty()) return report.Fail("pipeline_*.json", "", "missing");
  Pipeline pipeline(golden.checkpoint, pool);
  for (const std::string& name : names) {
    const std::string stem = name.substr(0, name.size() - 5);
    const TensorFiles file = TensorFiles::OpenFile(golden.root / (stem + ".safetensors"));
    RunCheck check(stem + ".safetensors", file, report);
    CheckRun(pipeline, ReadRun(golden.root / name, name), comm, check);
  }
}

}  // namespace equitile

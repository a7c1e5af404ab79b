// The flags of `equitile generate`, in the habits of stable-diffusion.cpp.
#include "apps/cli/flags.h"
#include "apps/cli/trace_output.h"
#include "apps/generate/generate_request.h"
#include "equitile/io/sidecar_file.h"

namespace equitile {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 31;

void AddWhat(CLI::App& app, GenerateFlags& flags) {
  app.add_option("-p,--prompt", flags.prompt, "what the video shows")->type_name("TEXT");
  app.add_option("--prompts", flags.prompts,
                 "one video per line, `prompt` or `seed<TAB>prompt`; outputs get numbers")
      ->type_name("FILE");
  app.add_option("--from", flags.from,
                 "the .json beside an earlier video: makes the same again; other flags change it")
      ->type_name("FILE");
  app.add_option("-o,--output", flags.output, ".mp4, .webm, .gif or frames/%05d.png")
      ->type_name("FILE");
  app.add_option("--save-latents", flags.save_latents, "also (or only) the latents, as safetensors")
      ->type_name("FILE");
}

void AddSurviving(CLI::App& app, GenerateFlags& flags) {
  app.add_option_function<std::vector<std::string>>(
         "--resume",
         [&flags](const std::vector<std::string>& values) {
           flags.resumes = true;
           flags.resume = values.empty() ? "" : values.front();
         },
         "go on from a checkpoint; default: OUTPUT.ckpt")
      ->expected(0, 1)
      ->type_name("[FILE]");
  AddNumber(app, "--checkpoint-every", flags.checkpoint_every, {.min = 1, .max = 1000},
            "steps between checkpoints; default: 5, and after every step of over 5 s");
  app.add_flag("--keep-checkpoint", flags.keep_checkpoint, "leave OUTPUT.ckpt when all is done");
  AddNumber(app, "--preview", flags.preview_every, {.min = 0, .max = 1000},
            "every N steps a strip of pictures of what is coming, OUTPUT.preview.png; 0: none");
  app.add_flag("--dry-run", flags.dry_run,
               "memory, time and layout, before anything is loaded or written");
  app.add_option("--perf-dump-path", flags.perf_dump, "seconds by part and step, as JSON")
      ->type_name("FILE");
  app.add_flag("-v,--verbose", flags.verbose, "say at the end how each layer was laid out");
  AddJson(app, flags.json);
}

}  // namespace

void AddModelFlags(CLI::App& app, GenerateFlags& flags) {
  app.add_option(
         "-m,--model", flags.model,
         "a checkpoint folder as diffusers saves it; default: EQUITILE_MODEL, else wan-mini")
      ->type_name("DIR");
  app.add_option("-n,--negative-prompt", flags.negative, "what it does not show")
      ->type_name("TEXT");
}

void AddSamplingFlags(CLI::App& app, GenerateFlags& flags) {
  AddNumber(app, "-W,--width", flags.width, {.min = -kMaxSize, .max = kMaxSize},
            "pixels, a multiple of 16");
  AddNumber(app, "-H,--height", flags.height, {.min = -kMaxSize, .max = kMaxSize},
            "pixels, a multiple of 16");
  AddNumber(app, "--video-frames", flags.frames, {.min = -kMaxSize, .max = kMaxSize}, "4 n + 1");
  AddNumber(app, "--fps", flags.fps, {.min = 1, .max = kMaxFps}, "frames per second");
  AddNumber(app, "--steps", flags.steps, {.min = 1, .max = kMaxSteps}, "denoising steps");
  AddNumber(app, "--cfg-scale", flags.guidance, {.min = 0, .max = kMaxGuidance},
            "guidance; 1 or less: without, at half the time");
  AddNumber(app, "--flow-shift", flags.flow_shift, {.min = kMinFlowShift, .max = kMaxFlowShift},
            "more steps at high noise");
  AddNumber(app, "-s,--seed", flags.seed, {}, "negative: a random one; default: 42");
  AddChoice(app, "--sampler", flags.sampler, {"unipc", "unipc-b", "euler"}, "sampler");
  AddChoice(app, "--rng", flags.rng, {"torch", "philox"}, "noise of the same seed as");
  AddChoice(app, "--tokenizer", flags.tokenizer, {"json", "transformers5", "sentencepiece"},
            "how the checkpoint's tokenizer is read");
}

void AddExecutionFlags(CLI::App& app, GenerateFlags& flags) {
  AddRanks(app, flags.ranks);
  app.add_option("--planner", flags.planner,
                 "auto, fractional, ulysses, ring, usp:UxR, dbsp:UxR, dbsp+:UxR")
      ->type_name("TEXT")
      ->default_str("auto");
  AddNumber(app, "--ulysses-degree", flags.ulysses_degree, {.min = 1, .max = 1 << 20},
            "with --ring-degree R: the same as --planner usp:UxR");
  AddNumber(app, "--ring-degree", flags.ring_degree, {.min = 1, .max = 1 << 20},
            "see --ulysses-degree");
  AddComputeFlags(app, flags);
}

void AddComputeFlags(CLI::App& app, GenerateFlags& flags) {
  app.add_option("--attention,--attention-backend", flags.attention, "dense or mask:FILE")
      ->type_name("KIND");
  AddNumber(app, "--reuse-threshold", flags.reuse_threshold, {.min = 1, .max = 1e6},
            "plan a layer anew when its imbalance reaches this; default: when it saves time");
  app.add_flag("--reproducible,!--no-reproducible", flags.reproducible,
               "auto: only layouts that give the same bits on any ranks (default)");
  AddChoice(app, "--wire", flags.wire, {"f32", "bf16"}, "numbers between ranks")
      ->default_str("f32");
  AddChoice(app, "--weights", flags.weights, {"auto", "f32", "bf16"},
            "weights in memory; auto: by free memory");
  app.add_option("--machine", flags.machine, "rates measured by `equitile bench machine --out`")
      ->type_name("FILE");
  app.add_flag("--vae-tiling", flags.vae_tiling,
               "decode in blended tiles: for frames that do not fit into memory");
}

void AddGenerateFlags(CLI::App& app, GenerateFlags& flags) {
  AddWhat(app, flags);
  AddModelFlags(app, flags);
  AddSamplingFlags(app, flags);
  AddExecutionFlags(app, flags);
  AddTrace(app, flags.trace);
  AddSurviving(app, flags);
}

}  // namespace equitile

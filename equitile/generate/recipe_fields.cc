// The table of the recipe.
#include <fmt/format.h>

#include "equitile/generate/attention_choice.h"
#include "equitile/generate/compute_choice.h"
#include "equitile/generate/recipe.h"
#include "equitile/plan/planners/planner.h"

namespace equitile {
namespace {

ConfigMember Of(int64_t GenerationConfig::*member) {
  return {[member](const GenerationConfig& c) { return fmt::format("{}", c.*member); },
          [member](GenerationConfig& c, const std::string& text) {
            c.*member = ParseNumber("", text, Bounds<int64_t>{});
          }};
}

ConfigMember Of(double GenerationConfig::*member) {
  return {[member](const GenerationConfig& c) { return fmt::format("{}", c.*member); },
          [member](GenerationConfig& c, const std::string& text) {
            c.*member = ParseNumber("", text, Bounds<double>{});
          }};
}

ConfigMember Of(std::string GenerationConfig::*member) {
  return {[member](const GenerationConfig& c) { return c.*member; },
          [member](GenerationConfig& c, const std::string& text) { c.*member = text; }};
}

template <typename Kind>
ConfigMember Of(Kind GenerationConfig::*member, std::string_view (*name)(Kind),
                Kind (*parse)(std::string_view)) {
  return {[=](const GenerationConfig& c) { return std::string(name(c.*member)); },
          [=](GenerationConfig& c, const std::string& text) { c.*member = parse(text); }};
}

FieldType Planner() {
  FieldType type = Text();
  type.check = [](std::string_view, std::string_view text) {
    ParsePlannerKind(text);  // throws; whether it fits the ranks is seen when they are known
    return std::string(text);
  };
  return type;
}

FieldType Seed() {
  FieldType type = WholeNumber();
  type.is_settled = [](std::string_view text) { return !text.starts_with("-"); };
  return type;
}

FieldType WeightsType() {
  FieldType type = Word({"auto", "f32", "bf16", "int16", "int8"});
  type.is_settled = [](std::string_view text) { return text != "auto"; };
  return type;
}

FieldType TokenOrderType() {
  FieldType type = Text("ORDER");
  type.check = [](std::string_view, std::string_view text) {
    return TokenOrderName(ParseTokenOrder(text));
  };
  return type;
}

// Whether another layout would give other bits: rows may be split between ranks, or what travels
// between them is rounded.
bool LayoutMatters(const Recipe& recipe) {
  const auto ranks = static_cast<int32_t>(recipe.Integer("ranks"));
  if (ranks <= 1) return false;
  if (WireOf(recipe) != DType::kF32) return true;
  return MaySplitRows(ParsePlanner(recipe.Text("planner"), ranks), recipe.Config().Passes(), ranks,
                      recipe.IsOn("reproducible"));
}

bool AttentionIsSparse(const Recipe& recipe) {
  return ParseAttention(recipe.Text("attention")).IsSparse();
}

bool LinearIsInt8(const Recipe& recipe) { return ComputeOf(recipe).linear == Compute::kInt8; }

std::vector<RecipeField> MakeFields() {
  using Config = GenerationConfig;
  return {
      {.name = "prompt",
       .flags = "-p,--prompt",
       .key = "prompt",
       .type = Text(),
       .help = "what the video shows"},
      {.name = "output",
       .flags = "-o,--output",
       .key = "output",
       .type = OutputPath("FILE"),
       .decides_bits = false,
       .help = ".mp4, .webm, .gif or frames/%05d.png; .png, .jpg or .webp for a single frame"},
      {.name = "file of latents",
       .flags = "--save-latents",
       .key = "save_latents",
       .type = OutputPath("FILE"),
       .decides_bits = false,
       .help = "also (or only) the latents, as safetensors"},
      {.name = "folder of the model",
       .flags = "-m,--model",
       .key = "model",
       .type = InputPath("DIR"),
       .decides_bits = false,
       .help = "a checkpoint folder as diffusers saves it; default: EQUITILE_MODEL, else wan-mini"},
      {.name = "model", .key = "model_fingerprint", .type = Hash(), .describes = "model"},
      {.name = "number of rows of text",
       .key = "text_rows",
       .type = WholeNumber({.min = 1, .max = INT32_MAX}),
       .describes = "model",
       .member = Of(&Config::text_rows)},
      {.name = "negative prompt",
       .flags = "-n,--negative-prompt",
       .key = "negative_prompt",
       .type = Text(),
       .help = "what it does not show",
       .member = Of(&Config::negative_prompt)},
      {.name = "width",
       .flags = "-W,--width",
       .key = "width",
       .type = WholeNumber(),  // CheckSizes knows which, and the nearest
       .help = "pixels, a multiple of 16; default: the model's (wan-mini 256), else 832",
       .member = Of(&Config::width)},
      {.name = "height",
       .flags = "-H,--height",
       .key = "height",
       .type = WholeNumber(),  // CheckSizes knows which, and the nearest
       .help = "pixels, a multiple of 16; default: the model's (wan-mini 256), else 480",
       .member = Of(&Config::height)},
      {.name = "frames",
       .flags = "--video-frames,--num-frames",
       .key = "video_frames",
       .type = WholeNumber(),  // CheckSizes knows which, and the nearest
       .help = "4 n + 1; default: the model's (wan-mini 49), else 81",
       .member = Of(&Config::frames)},
      {.name = "frames per second",
       .flags = "--fps",
       .key = "fps",
       .type = WholeNumber({.min = 1, .max = 1000}),
       .decides_bits = false,  // but of the file, which is written anew
       .help = "frames per second; .gif: at most 50, in steps of 1/100 s; default: the "
               "model's, else 16",
       .member = Of(&Config::fps)},
      {.name = "quality of the file",
       .flags = "--crf",
       .key = "crf",
       .type = WholeNumber({.min = 0, .max = 63}),
       .decides_bits = false,  // but of the file
       .since = "0.3.0",
       .help = "quality of .mp4 and .webm, 0 is best; default: 17 and 24"},
      {.name = "steps",
       .flags = "--steps,--num-inference-steps",
       .key = "steps",
       .type = WholeNumber({.min = 1, .max = 1000}),
       .help = "denoising steps; default: the model's (wan-mini 20), else 50",
       .member = Of(&Config::steps)},
      {.name = "guidance",
       .flags = "--cfg-scale,--guidance-scale",
       .key = "cfg_scale",
       .type = RealNumber({.min = 0, .max = 1000}),
       .help = "guidance; 1 or less: without, at half the time; default: the model's "
               "(wan-mini 4), else 5",
       .member = Of(&Config::guidance)},
      {.name = "flow shift",
       .flags = "--flow-shift",
       .key = "flow_shift",
       .type = RealNumber({.min = 1e-3, .max = 1e3}),
       .help = "more steps at high noise; default: the model's",
       .member = Of(&Config::flow_shift)},
      {.name = "seed",
       .flags = "-s,--seed",
       .key = "seed",
       .type = Seed(),
       .initial = "42",
       .help = "negative: a random one"},
      {.name = "sampler",
       .flags = "--sampler",
       .key = "sampler",
       .type = Word({"unipc", "unipc-b", "euler"}),
       .help = "sampler (default: the model's)",
       .member = Of(&Config::sampler, SamplerKindName, ParseSamplerKind)},
      {.name = "rng",
       .flags = "--rng",
       .key = "rng",
       .type = Word({"torch", "philox"}),
       .help = "whose noise the seed gives (default: torch)",
       .member = Of(&Config::rng, NoiseKindName, ParseNoiseKind)},
      {.name = "tokenizer",
       .flags = "--tokenizer",
       .key = "tokenizer",
       .type = Word({"json", "transformers5", "sentencepiece"}),
       .initial = "json",
       .help = "how the checkpoint's tokenizer is read"},
      {.name = "attention",
       .flags = "--attention,--attention-backend",
       .key = "attention",
       .type = AttentionType(),
       .initial = "dense",
       .help =
           "dense, observe, predict, pattern[:FILE], pattern+predict[:FILE], mask:FILE, svg, "
           "radial, sta[:FILE], static:FILE, sparge, window:spatial, window:temporal, oracle; "
           "with dials as in predict:error=0.01,refresh=4 or observe:error=0.01,at=STEP; by mass "
           "instead of error: predict:mass=0.95,min=0.05,refresh=1,guard=0, observe:mass=0.99; "
           "both: tail=mean; predict:FILE, observe:FILE and pattern+predict weigh errors of "
           "layers by the pattern file (one without weights has masses)"},
      {.name = "mask", .key = "mask_hash", .type = Hash(), .describes = "attention"},
      {.name = "number of dense steps",
       .flags = "--dense-steps",
       .key = "dense_steps",
       .type = DenseStepsType(),
       .initial = "auto",
       .where = AttentionIsSparse,
       .since = "0.2.0",
       .help = "first steps with all blocks, like 4 or 20%; auto: 20%, but 0 with mask:FILE"},
      {.name = "number of dense layers",
       .flags = "--dense-layers",
       .key = "dense_layers",
       .type = WholeNumber({.min = 0, .max = INT32_MAX}),
       .initial = "0",
       .where = AttentionIsSparse,
       .since = "0.2.0",
       .help = "first layers with all blocks"},
      {.name = "dense last step",
       .flags = "--dense-last-step",
       .key = "dense_last_step",
       .type = Switch(),
       .initial = "false",
       .where = AttentionIsSparse,
       .since = "0.2.0",
       .help = "all blocks in the last step too"},
      {.name = "sharing of passes",
       .flags = "--share-passes",
       .key = "share_passes",
       .type = Switch(),
       .initial = "false",
       .where = AttentionIsSparse,
       .since = "0.2.0",
       .help = "masks of the conditional pass for both guidance passes"},
      {.name = "cache",
       .flags = "--cache",
       .key = "cache",
       .type = CacheType(),
       .initial = "none",
       .since = "0.2.0",
       .help = "easy[:0.05]: whole steps are skipped while little changes; none"},
      {.name = "token order",
       .flags = "--token-order",
       .key = "token_order",
       .type = TokenOrderType(),
       .initial = "fhw",
       .since = "0.2.0",
       .help =
           "how the transformer lines up the video's tokens, and so blocks and homes: fhw (frame, "
           "height, width) or another order of the three, hilbert, tiles:FxHxW",
       .member = {.get = {},
                  .set =
                      [](Config& config, const std::string& text) {
                        config.token_order = ParseTokenOrder(text);
                      }}},
      {.name = "arithmetic",
       .flags = "--compute",
       .key = "compute",
       .type = ComputeType(),
       .initial = "f32",
       .since = "0.3.0",
       .help = "f32, int16 (near-lossless) or int8 (faster, coarser), or parts like "
               "linear=int16,text=f32: attention, linear, vae (not int8), text; parts alone leave "
               "the others as --quality or --from has them"},
      {.name = "weights",
       .flags = "--weights",
       .key = "weights",
       .type = WeightsType(),
       .initial = "auto",
       .help = "weights in memory; auto: as --compute asks, else by free memory"},
      {.name = "layers that stay int16",
       .key = "int16_layers",
       .type = Text(),
       .where = LinearIsInt8,
       .since = "0.3.0",
       .describes = "model"},
      {.name = "vae tiling",
       .flags = "--vae-tiling",
       .key = "vae_tiling",
       .type = Switch(),
       .initial = "false",
       .help = "decode in blended tiles: for frames that do not fit into memory"},
      {.name = "target", .key = "target", .type = Text(), .since = "0.2.0"},
      {.name = "layout",
       .flags = "--planner",
       .key = "planner",
       .type = Planner(),
       .initial = "auto",
       .where = LayoutMatters,
       .help = "auto, fractional, ulysses, ring, usp:UxR, dbsp:UxR, dbsp+:UxR, dbsp:auto (db-SP "
               "as published: the best dbsp:UxR of every layer and step)"},
      {.name = "number of ranks",
       .key = "ranks",
       .type = WholeNumber({.min = 1, .max = INT32_MAX}),
       .where = LayoutMatters,
       .since = "0.2.0"},
      {.name = "reproducibility",
       .flags = "--reproducible",
       .key = "reproducible",
       .type = Switch(),
       .initial = "true",
       .where = LayoutMatters,
       .help = "auto: only layouts that give the same bits on any ranks (default)"},
      {.name = "wire",
       .flags = "--wire",
       .key = "wire",
       .type = Word({"f32", "bf16", "int16", "int8"}),
       .initial = "f32",
       .where = LayoutMatters,
       .help = "numbers between ranks; integers travel as attention computes in them"},
      {.name = "reuse threshold",
       .flags = "--reuse-threshold",
       .key = "reuse_threshold",
       .type = RealNumber({.min = 1, .max = 1e6}),
       .where = LayoutMatters,
       .since = "0.2.0",
       .help = "plan a layer anew when its imbalance reaches this; default: when it saves time, "
               "1.10 for dbsp:auto"},
      {.name = "file of the machine",
       .flags = "--machine",
       .key = "machine",
       .type = InputPath("FILE"),
       .where = LayoutMatters,
       .since = "0.2.0",
       .help = "rates measured by `equitile bench machine --out`"},
      {.name = "machine",
       .key = "machine_hash",
       .type = Hash(),
       .where = LayoutMatters,
       .since = "0.2.0",
       .describes = "machine"},
      // What a run decided by its clock (recorded_layouts.h): a consequence of the fields above in
      // that run, and the same for whoever repeats it.
      {.name = "layouts of layers and steps",
       .key = "layouts",
       .type = Text(),
       .decides_bits = false,
       .where = LayoutMatters,
       .since = "0.2.0"},
      {.name = "measured rates",
       .key = "rates",
       .type = Text(),
       .decides_bits = false,
       .where = LayoutMatters,
       .since = "0.2.0"},
  };
}

}  // namespace

std::span<const RecipeField> RecipeFields() {
  static const std::vector<RecipeField> fields = MakeFields();
  return fields;
}

}  // namespace equitile

// `equitile inspect DIR | file.safetensors`: what a checkpoint is, how large a video it is asked
// for, and what a step of that costs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "apps/cli/table.h"
#include "apps/inspect/inspect.h"
#include "equitile/base/error.h"
#include "equitile/io/arrays/safetensors.h"
#include "equitile/model/sampling/denoise.h"
#include "equitile/model/sampling/generation_config.h"
#include "equitile/model/text/umt5_config.h"
#include "equitile/model/vae/vae_config.h"
#include "equitile/model/wan/wan_config.h"
#include "equitile/model/wan/wan_weights.h"

namespace equitile {
namespace {

std::string BytesText(double bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < std::size(units); ++unit) bytes /= 1000;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

Cell BytesCell(int64_t bytes) { return {Json(bytes), BytesText(static_cast<double>(bytes))}; }

Cell CountCell(int64_t count) {
  std::string digits = std::to_string(count);
  for (auto at = static_cast<ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), " ");
  }
  return {Json(count), digits};
}

struct Totals {
  int64_t tensors = 0, parameters = 0, bytes = 0;
  std::map<std::string, int64_t> of_type;  // parameters

  explicit Totals(const TensorFiles& files) {
    for (const StoredTensor& tensor : files.tensors()) {
      ++tensors;
      parameters += tensor.Elements();
      bytes += static_cast<int64_t>(tensor.bytes.size());
      of_type[std::string(StoredTypeName(tensor.type))] += tensor.Elements();
    }
  }
  std::string Types() const {
    std::vector<std::string> names;
    for (const auto& [name, count] : of_type) names.push_back(name);
    return fmt::format("{}", fmt::join(names, " + "));
  }
};

std::string TransformerShape(const WanConfig& c) {
  return fmt::format("{} layers, {} heads x {}, ffn {}, text {}", c.layers, c.heads, c.head_dim,
                     c.ffn_dim, c.text_dim);
}
std::string EncoderShape(const Umt5Config& c) {
  return fmt::format("{} layers, width {}, {} heads x {}, ffn {}, {} ids", c.layers, c.d_model,
                     c.heads, c.d_kv, c.d_ff, c.vocab_size);
}
std::string VaeShape(const VaeConfig& c) {
  return fmt::format("base {} x {}, {} latent channels, {}x{}x{} compression", c.base_dim,
                     fmt::join(c.dim_mult, "/"), c.z_dim, c.SpatialScale(), c.SpatialScale(),
                     c.TemporalScale());
}

// Operations that are neither attention nor linear, per token and layer: three norms with
// modulation or affine weights (10 each), two norms of q and k and one of the cross-attention's q
// (4), rotation of q and k (6), three residuals of which two are gated (5), and the activation (12
// per ffn value).
double RestFlops(const WanConfig& config, int64_t tokens) {
  const auto d = static_cast<double>(config.Width()), f = static_cast<double>(config.ffn_dim);
  return static_cast<double>(config.layers) * static_cast<double>(tokens) * (53.0 * d + 12.0 * f);
}

struct Video {
  GenerationConfig config;
  int64_t tokens = 0;
  WanFlops pass;
  double rest = 0;  // of a pass

  double StepTotal() const { return static_cast<double>(config.Passes()) * (pass.Total() + rest); }
};

Video MakeVideo(const InspectOptions& options, const CheckpointFolder& folder,
                const WanConfig& model) {
  Video video;
  video.config = ReadGenerationConfig(folder);
  if (options.width) video.config.width = *options.width;
  if (options.height) video.config.height = *options.height;
  if (options.frames) video.config.frames = *options.frames;
  CheckSizes(video.config);
  video.tokens = VideoTokens(model, video.config);
  video.pass = CountWanFlops(model, video.tokens, video.config.text_rows);
  video.rest = RestFlops(model, video.tokens);
  return video;
}

Table PartsTable(const CheckpointFolder& folder, const WanConfig& model) {
  Table table({{"part"}, {"tensors"}, {"parameters"}, {"bytes"}, {"dtypes"}, {"shape"}});
  const auto add = [&](const char* part, const std::string& shape) {
    const Totals totals(TensorFiles::OpenFolder(folder.Part(part)));
    table.Add({part, totals.tensors, CountCell(totals.parameters), BytesCell(totals.bytes),
               totals.Types(), shape});
  };
  add("transformer", TransformerShape(model));
  add("text_encoder", EncoderShape(ReadUmt5Config(folder.Config("text_encoder"))));
  add("vae", VaeShape(ReadVaeConfig(folder.Config("vae"))));
  return table;
}

// Of all passes at once.
int64_t ActivationBytes(const WanConfig& model, const Video& video) {
  return WanActivationBytes(model, video.config.Passes() * video.tokens);
}

Json StepJson(const Video& video) {
  const auto passes = static_cast<double>(video.config.Passes());
  return {{"self_attention", passes * video.pass.self_attention},
          {"cross_attention", passes * video.pass.cross_attention},
          {"linear", passes * video.pass.linear},
          {"rest", passes * video.rest},
          {"total", video.StepTotal()}};
}

void PrintVideo(const WanConfig& model, const Video& video) {
  const GenerationConfig& c = video.config;
  fmt::print("\n{}x{}, {} frames: latents {} x {} x {}, {} tokens; {} steps, {}\n", c.width,
             c.height, c.frames, c.LatentFrames(), c.LatentHeight(), c.LatentWidth(), video.tokens,
             c.steps, c.Passes() == 2 ? "two passes each" : "one pass each");
  Table table({{"FLOPs_of_a_step"}, {"TFLOP"}, {"share"}});
  const Json step = StepJson(video);
  for (const auto& item : step.items()) {
    const double flops = item.value().get<double>();
    table.Add({item.key(),
               {Json(flops), fmt::format("{:.4g}", flops / 1e12)},
               {Json(), fmt::format("{:.1f} %", 100 * flops / video.StepTotal())}});
  }
  fmt::print("{}", table.ToText(Terminal::Of(stdout)));
  fmt::print("memory: transformer {} (f32) or {} (bf16), activations about {}\n",
             BytesText(static_cast<double>(WanWeights::Bytes(model, WeightType::kF32))),
             BytesText(static_cast<double>(WanWeights::Bytes(model, WeightType::kBF16))),
             BytesText(static_cast<double>(ActivationBytes(model, video))));
}

}  // namespace

void InspectCheckpoint(const InspectOptions& options) {
  const CheckpointFolder folder{std::filesystem::path(options.path)};
  const WanConfig model = ReadWanConfig(folder.Config("transformer"));
  const Table parts = PartsTable(folder, model);
  const Video video = MakeVideo(options, folder, model);
  if (!options.json) {
    fmt::print("{}: Wan text-to-video checkpoint\n\n{}", options.path,
               parts.ToText(Terminal::Of(stdout)));
    return PrintVideo(model, video);
  }
  const GenerationConfig& c = video.config;
  PrintJson({{"kind", "checkpoint"},
             {"parts", parts.ToJson()},
             {"video",
              {{"width", c.width},
               {"height", c.height},
               {"frames", c.frames},
               {"latent", {c.LatentFrames(), c.LatentHeight(), c.LatentWidth()}},
               {"tokens", video.tokens},
               {"text_rows", c.text_rows},
               {"steps", c.steps},
               {"passes", c.Passes()}}},
             {"flops_per_step", StepJson(video)},
             {"memory",
              {{"transformer_f32", WanWeights::Bytes(model, WeightType::kF32)},
               {"transformer_bf16", WanWeights::Bytes(model, WeightType::kBF16)},
               {"activations", ActivationBytes(model, video)}}}});
}

void InspectTensors(const InspectOptions& options) {
  constexpr int64_t kShown = 40;  // rows for people; --json has all
  const TensorFiles files = TensorFiles::OpenFile(options.path);
  const Totals totals(files);
  Table table({{"tensor"}, {"dtype"}, {"shape"}, {"bytes"}});
  int64_t rows = 0;
  for (const StoredTensor& tensor : files.tensors()) {
    if (!options.json && rows++ >= kShown) break;
    table.Add({tensor.name,
               std::string(StoredTypeName(tensor.type)),
               {Json(tensor.shape), tensor.ShapeText()},
               BytesCell(static_cast<int64_t>(tensor.bytes.size()))});
  }
  if (options.json) {
    Json tensors = table.ToJson();
    if (tensors.is_object()) tensors = Json::array({tensors});
    PrintJson({{"kind", "safetensors"},
               {"tensors", totals.tensors == 0 ? Json::array() : tensors},
               {"parameters", totals.parameters},
               {"bytes", totals.bytes},
               {"parameters_by_dtype", totals.of_type},
               {"metadata", files.metadata()}});
    return;
  }
  fmt::print("{}: {} tensors, {} values, {}, {}\n\n", options.path, totals.tensors,
             CountCell(totals.parameters).text, BytesText(static_cast<double>(totals.bytes)),
             totals.tensors == 0 ? "empty" : totals.Types());
  if (totals.tensors > 0) fmt::print("{}", table.ToText(Terminal::Of(stdout)));
  if (totals.tensors > kShown) {
    fmt::print("and {} more; --json lists all\n", totals.tensors - kShown);
  }
  for (const auto& [key, value] : files.metadata()) fmt::print("{}: {}\n", key, value);
}

}  // namespace equitile

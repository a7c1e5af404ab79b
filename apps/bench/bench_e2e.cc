// `equitile bench e2e`: where does the time of a denoising step go, and how close to the machine's
// peak is it?
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "apps/cli/commands.h"
#include "apps/cli/flags.h"
#include "apps/cli/model_path.h"
#include "apps/cli/progress.h"
#include "apps/cli/table.h"
#include "apps/cli/terminal.h"
#include "equitile/base/error.h"
#include "equitile/base/rng.h"
#include "equitile/base/timer.h"
#include "equitile/base/topology.h"
#include "equitile/comm/solo/solo.h"
#include "equitile/exec/executor.h"
#include "equitile/generate/compute_choice.h"
#include "equitile/io/arrays/safetensors.h"
#include "equitile/io/records/checkpoint_folder.h"
#include "equitile/kernel/simd/fma_peak.h"
#include "equitile/kernel/target.h"
#include "equitile/model/wan/wan_transformer.h"
#include "equitile/sparsity/layer_attention.h"
#include "equitile/tensor/tensor.h"

namespace equitile {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  equitile bench e2e\n"
    "  equitile bench e2e -m models/wan-mini -W 256 -H 256 --video-frames 49\n"
    "  equitile bench e2e --shape wan-1.3b,layers=2 --tokens 8192 --weights bf16 --json\n"
    "  equitile bench e2e --compute int8\n"
    "rest is everything that is neither attention nor a linear layer, also where it is fused with "
    "one.\n"
    "Fractions are of the best of several windows of multiply-adds on all threads, in turns with "
    "the steps.";

// Steps that count: at least so many, and more while they take less than so long together.
constexpr int kLeastSteps = 3;
constexpr double kEnoughSeconds = 1.0;

struct Options {
  std::string model, shape, compute = "f32";
  std::optional<std::string> weights;  // as `compute` has them, else f32
  std::optional<int64_t> tokens;
  int64_t width = 256, height = 256, frames = 49;
  int64_t batch = 2, text_rows = 20, text_tokens = 512, threads = 0, seed = 1;
  bool json = false;
};

ComputeChoice ComputeOf(const Options& options) { return ParseComputeChoice(options.compute); }

WeightType WeightsOf(const Options& options) {
  const Compute linear = ComputeOf(options).linear;
  if (linear == Compute::kF32) return ParseWeightType(options.weights.value_or("f32"));
  if (options.weights) {
    throw InputError(
        "--weights {}: linear layers compute in {}, and weights with them; leave "
        "--weights away",
        *options.weights, ComputeName(linear));
  }
  return IntegerWeights(linear);
}

// Pixels per latent element, and frames per latent frame after the first: the VAE's.
constexpr int64_t kPixels = 8, kFrames = 4;

TokenGrid GridOfVideo(const Options& options, const WanConfig& config) {
  const int64_t multiple_w = kPixels * config.patch.width,
                multiple_h = kPixels * config.patch.height;
  if (options.width % multiple_w != 0 || options.height % multiple_h != 0) {
    throw InputError("--width {} --height {}: must be multiples of {} and {}", options.width,
                     options.height, multiple_w, multiple_h);
  }
  TokenGrid grid;
  grid.frames = CeilDiv((options.frames - 1) / kFrames + 1, config.patch.frames);
  grid.height = options.height / multiple_h;
  grid.width = options.width / multiple_w;
  return grid;
}

// The factors closest to each other: any number of tokens, as long as no axis becomes too long.
TokenGrid GridOfTokens(int64_t tokens, const WanConfig& config) {
  auto divisor = [](int64_t n, double from) {
    auto d = std::max<int64_t>(1, std::llround(from));
    while (n % d != 0) --d;
    return d;
  };
  TokenGrid grid;
  grid.frames = divisor(tokens, std::cbrt(static_cast<double>(tokens)));
  const int64_t rest = tokens / grid.frames;
  grid.height = divisor(rest, std::sqrt(static_cast<double>(rest)));
  grid.width = rest / grid.height;
  if (grid.width > config.rope_max_seq_len) {
    throw InputError("--tokens {}: {} x {} x {} is the most even grid; no axis may exceed {}",
                     tokens, grid.frames, grid.height, grid.width, config.rope_max_seq_len);
  }
  return grid;
}

Tensor RandomNormal(const Shape& shape, uint64_t seed, uint32_t stream) {
  Tensor tensor(DType::kF32, shape);
  const Rng rng(seed, stream);
  for (int64_t i = 0; i < tensor.Elements(); ++i) {
    tensor.DataAs<float>()[i] = rng.NormalAt(static_cast<uint64_t>(i));
  }
  return tensor;
}

// Of this process alone: getrusage would count what its parent had before it started us.
int64_t PeakMemoryBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  rusage usage = {};  // where there is no /proc
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// Model and inputs of the steps.
class Workload {
 public:
  Workload(const Options& options, const WanConfig& config, ThreadPool& pool)
      : config_(config), pool_(pool), executor_(comm_, pool) {
    const auto seed = static_cast<uint64_t>(options.seed);
    grid_ = options.tokens ? GridOfTokens(*options.tokens, config) : GridOfVideo(options, config);
    Load(options);
    const Compute attention = ComputeOf(options).attention;
    transformer_.emplace(config_, weights_, pool, attention);
    const PatchSize& patch = config.patch;
    latent_ = RandomNormal({config.in_channels, grid_.frames * patch.frames,
                            grid_.height * patch.height, grid_.width * patch.width},
                           seed, 0);
    const Tensor rows = RandomNormal({options.text_rows, config.text_dim}, seed, 1);
    texts_.push_back(transformer_->Text(rows, options.text_tokens));
    // The unconditional pass: a prompt of one token.
    texts_.push_back(transformer_->Text(rows.view().Slice(0, {0, 1}), options.text_tokens));
    for (int64_t item = 0; item < options.batch; ++item) {
      latents_.push_back(latent_.view());
      text_pointers_.push_back(&texts_[static_cast<size_t>(item % 2)]);
      home_.push_back({0, Tokens()});
    }
    out_ = AlignedBuffer<float>(options.batch * Tokens() * config.OutFeatures());
    const Lanes lanes{.batch = options.batch, .heads = config.heads};
    attention_.emplace(
        executor_,
        std::make_unique<ConstantMasks>(
            BlockMask::Dense(lanes, {.q_tokens = Tokens(), .kv_tokens = Tokens()})),
        LayerAttention::Options{
            .head_dim = config.head_dim, .layers = config.layers, .compute = attention});
  }

  int64_t Tokens() const { return grid_.VideoTokens(); }
  double load_seconds() const { return load_seconds_; }
  int64_t weight_bytes() const { return bytes_.size(); }

  WanFlops Flops() const {
    WanFlops sum;
    for (const WanText* text : text_pointers_) {
      const WanFlops flops = CountWanFlops(config_, Tokens(), text->keys);
      sum.self_attention += flops.self_attention;
      sum.cross_attention += flops.cross_attention;
      sum.linear += flops.linear;
    }
    return sum;
  }

  WanTimes Step() {
    WanTimes times;
    WanPass pass;
    pass.timestep = 500.0f;
    pass.latents = latents_;
    pass.texts = text_pointers_;
    pass.home = home_;
    pass.attention = SelfAttention(*attention_);
    pass.times = &times;
    transformer_->Forward(pass, out_.data());
    return times;
  }

  void CheckFinite() const {
    for (float value : out_.span()) {
      if (!std::isfinite(value)) throw Error("the step's output is not finite; it is not timed");
    }
  }

 private:
  void Load(const Options& options) {
    const WeightType type = WeightsOf(options);
    const Stopwatch watch;
    WanWeightTypes types(type);
    if (options.shape.empty()) {
      const TensorFiles files =
          TensorFiles::OpenFolder(std::filesystem::path(options.model) / "transformer");
      if (type == WeightType::kInt8) types.int16 = WanWeights::StayInt16(files, config_);
      bytes_ = AlignedBuffer<std::byte>(WanWeights::Bytes(config_, types));
      Progress progress("loading");
      WanWeights::Pack(files, config_, types, bytes_.span(), pool_,
                       [&](int64_t done, int64_t total) { progress.Report(done, total); });
    } else {
      bytes_ = AlignedBuffer<std::byte>(WanWeights::Bytes(config_, types));
      WanWeights::PackRandom(config_, types, static_cast<uint64_t>(options.seed), bytes_.span(),
                             pool_);
    }
    load_seconds_ = watch.Seconds();
    weights_ = WanWeights(config_, types, bytes_.span());
  }

  WanConfig config_;
  ThreadPool& pool_;
  TokenGrid grid_;
  AlignedBuffer<std::byte> bytes_;
  double load_seconds_ = 0.0;
  WanWeights weights_;
  std::optional<WanTransformer> transformer_;
  SoloCommunicator comm_;
  Executor executor_;
  std::optional<LayerAttention> attention_;  // as `generate` runs it
  Tensor latent_;
  std::vector<WanText> texts_;
  std::vector<ConstView> latents_;
  std::vector<const WanText*> text_pointers_;
  std::vector<Range> home_;
  AlignedBuffer<float> out_;
};

// The step of median length, and the peak.
struct Timing {
  WanTimes times;
  double seconds = 0.0, peak_gflops = 0.0;
};

Timing TimeSteps(Workload& workload, ThreadPool& pool) {
  struct Step {
    double seconds;
    WanTimes times;
  };
  std::vector<Step> steps;
  Timing timing;
  Progress progress("bench e2e");
  double sum = 0.0;
  while (static_cast<int>(steps.size()) < kLeastSteps || sum < kEnoughSeconds) {
    timing.peak_gflops = std::max(timing.peak_gflops, FmaPeakWindow(pool));
    const Stopwatch watch;
    const WanTimes times = workload.Step();
    steps.push_back({watch.Seconds(), times});
    sum += steps.back().seconds;
    progress.Report(std::min<int64_t>(static_cast<int64_t>(steps.size()), kLeastSteps), kLeastSteps,
                    "steps");
  }
  timing.peak_gflops = std::max(timing.peak_gflops, FmaPeakWindow(pool));
  std::sort(steps.begin(), steps.end(),
            [](const Step& a, const Step& b) { return a.seconds < b.seconds; });
  const Step& median = steps[(steps.size() - 1) / 2];
  timing.seconds = median.seconds;
  timing.times = median.times;
  return timing;
}

Table Report(const Options& options, const WanConfig& config, const Workload& workload,
             const Timing& timing, int64_t memory_before) {
  const WanFlops flops = workload.Flops();
  auto fraction = [&](double flop, double seconds) {
    return flop / seconds * 1e-9 / timing.peak_gflops;
  };
  const WanTimes& t = timing.times;
  const int64_t memory = PeakMemoryBytes();
  auto gib = [](int64_t bytes) {
    return Cell(bytes, fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30)));
  };
  Table table({{"target"},
               {"threads"},
               {"model"},
               {"layers"},
               {"weights"},
               {"compute", false},
               {"tokens"},
               {"batch"},
               {"peak_gflops"},
               {"step_seconds"},
               {"attention_seconds"},
               {"linear_seconds"},
               {"rest_seconds"},
               {"rest_share"},
               {"fraction_of_peak"},
               {"attention_fraction"},
               {"linear_fraction"},
               {"flops", false},
               {"load_seconds", false},
               {"weight_bytes", false},
               {"memory_before_bytes", false},
               {"peak_memory_bytes"}});
  table.Add({std::string(ActiveTargetName()),
             options.threads,
             options.shape.empty() ? options.model : options.shape,
             config.layers,
             std::string(WeightTypeName(WeightsOf(options))),
             ComputeChoiceText(ComputeOf(options)),
             workload.Tokens(),
             options.batch,
             {timing.peak_gflops, 1},
             {timing.seconds, 3},
             {t.attention, 3},
             {t.linear, 3},
             {t.rest, 3},
             {t.rest / timing.seconds, 3},
             {fraction(flops.Total(), timing.seconds), 3},
             {fraction(flops.Attention(), t.attention), 3},
             {fraction(flops.linear, t.linear), 3},
             {flops.Total(), 0},
             {workload.load_seconds(), 3},
             workload.weight_bytes(),
             memory_before,
             gib(memory)});
  return table;
}

// The parts of a step below each other, which fits any terminal.
std::string Words(const Json& said) {
  const auto number = [&](const char* key) { return said[key].get<double>(); };
  Table parts({{"part"}, {"seconds"}, {"share"}, {"of_peak"}});
  const double step = number("step_seconds");
  for (const auto& [name, seconds, fraction] :
       {std::tuple("attention", "attention_seconds", "attention_fraction"),
        std::tuple("linear", "linear_seconds", "linear_fraction"),
        std::tuple("rest", "rest_seconds", ""),
        std::tuple("step", "step_seconds", "fraction_of_peak")}) {
    parts.Add({name, Cell(number(seconds), 3), Cell(number(seconds) / step, 3),
               *fraction == 0 ? Cell(Json(nullptr), "-") : Cell(number(fraction), 3)});
  }
  return fmt::format(
      "{}: {}, {} weights, {} tokens, {}\n{}, {}, peak {:.1f} GFLOP/s, memory {:.2f} GiB\n{}",
      said["model"].get<std::string>(), Counted(said["layers"].get<int64_t>(), "layer"),
      said["weights"].get<std::string>(), said["tokens"].get<int64_t>(),
      said["batch"] == 1 ? "1 pass" : fmt::format("{} passes", said["batch"].get<int64_t>()),
      said["target"].get<std::string>(), Counted(said["threads"].get<int64_t>(), "thread"),
      number("peak_gflops"), number("peak_memory_bytes") / (1 << 30),
      parts.ToText(Terminal::Of(stdout)));
}

Table Run(const Options& options) {
  const int64_t memory_before = PeakMemoryBytes();
  const WanConfig config =
      options.shape.empty()
          ? ReadWanConfig(std::filesystem::path(options.model) / "transformer" / "config.json")
          : ParseWanShape(options.shape);
  ThreadPool pool(static_cast<int>(options.threads));
  Workload workload(options, config, pool);
  workload.Step();
  workload.CheckFinite();
  const Timing timing = TimeSteps(workload, pool);
  return Report(options, config, workload, timing, memory_before);
}

}  // namespace

void RegisterBenchE2e(CLI::App& parent) {
  CLI::App& app = AddCommand(parent, "e2e",
                             "a denoising step: seconds and fraction of the peak by part, memory");
  auto options = std::make_shared<Options>();
  options->threads = DefaultThreads();
  auto* model = app.add_option("-m,--model", options->model,
                               "folder of the checkpoint; default: EQUITILE_MODEL, else wan-mini");
  auto* shape = app.add_option("--shape", options->shape,
                               "random weights instead: wan-1.3b or wan-14b, with ,layers=N");
  shape->excludes(model);
  auto* tokens = AddNumber(app, "--tokens", options->tokens, {.min = 1, .max = 1 << 22},
                           "video tokens, instead of a size");
  const Bounds<int64_t> size = {.min = 16, .max = 1 << 16};
  AddNumber(app, "-W,--width", options->width, size, "of the video")->excludes(tokens);
  AddNumber(app, "-H,--height", options->height, size, "of the video")->excludes(tokens);
  AddNumber(app, "--video-frames,--num-frames", options->frames, {.min = 1, .max = 1 << 16},
            "of the video")
      ->excludes(tokens);
  AddNumber(app, "--batch", options->batch, {.min = 1, .max = 16},
            "passes of a step: 2 with guidance, 1 without");
  AddNumber(app, "--text-rows", options->text_rows, {.min = 1, .max = 512}, "tokens of the prompt");
  AddChoice(app, "--weights", options->weights, {"f32", "bf16"},
            "how weights are packed; default: f32, or as --compute has them");
  app.add_option("--compute", options->compute,
                 "f32, int16 or int8, or parts like linear=int16: attention, linear")
      ->type_name("WHAT")
      ->capture_default_str();
  AddNumber(app, "-t,--threads", options->threads, {.min = 1, .max = 4096}, "threads");
  AddNumber(app, "--seed", options->seed, {.min = 0}, "of the numbers");
  AddJson(app, options->json);
  app.footer(kExamples);
  app.callback([options] {
    if (options->shape.empty()) {
      options->model = FindModel(options->model).string();
      std::error_code ignored;
      if (!std::filesystem::is_directory(options->model, ignored)) {
        const CheckpointFolder folder(options->model);  // which says what to do instead
      }
    }
    const Json said = Run(*options).ToJson();
    if (options->json) return PrintJson(said);
    fmt::print("{}", Words(said));
  });
}

}  // namespace equitile

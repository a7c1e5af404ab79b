// `equitile bench linear`: how close to the machine's peak are linear layers?
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench/bench_output.h"
#include "apps/bench/checked_turns.h"
#include "apps/bench/combinations.h"
#include "apps/cli/commands.h"
#include "apps/cli/flags.h"
#include "apps/cli/table.h"
#include "equitile/base/error.h"
#include "equitile/base/rng.h"
#include "equitile/base/topology.h"
#include "equitile/kernel/linear/linear.h"
#include "equitile/kernel/reference/linear_reference.h"
#include "equitile/kernel/target.h"
#include "equitile/tensor/tensor.h"

namespace equitile {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  equitile bench linear --tokens 4096 --in 1536 --out 8960\n"
    "  equitile bench linear --in 1536,8960 --out 8960,1536 --weights f32,bf16\n"
    "  equitile bench linear --tokens 3328 --in 192 --out 576 --epilogue gelu --json\n"
    "  equitile bench linear --in 1536 --out 1536 --compute f32,int16,int8\n"
    "Peak is the best of several windows of multiply-adds on all threads, in turns with the "
    "kernel,\n"
    "which counts by its median. Several --compute of a layer take turns; speedup: over the\n"
    "first, by the least seconds, on one thread those of the processor.";

constexpr int64_t kMaxSize = int64_t{1} << 24;
constexpr int64_t kMaxThreads = 4096;

struct Options {
  std::vector<int64_t> tokens = {4096}, in = {1536}, out = {8960}, threads;
  std::vector<std::string> weights = {"f32"}, computes = {"f32"}, epilogues = {"none"};
  int64_t seed = 1;
  bool json = false;

  // --in and --out pair up; one value serves all of the other's.
  size_t Sizes() const { return std::max(in.size(), out.size()); }
};

// One line of the result.
struct Setting {
  int64_t tokens, in, out, threads;
  std::string weights, compute, epilogue;

  // Integers have weights of their own.
  WeightType Type() const { return ParseWeightType(compute == "f32" ? weights : compute); }

  double Flops() const {
    return 2.0 * static_cast<double>(tokens) * static_cast<double>(in) * static_cast<double>(out);
  }

  bool operator==(const Setting&) const = default;
};

void CheckPairs(const Options& options) {
  for (const auto* list : {&options.in, &options.out}) {
    if (list->size() != 1 && list->size() != options.Sizes()) {
      throw InputError("--in and --out pair up; {} and {} values were given", options.in.size(),
                       options.out.size());
    }
  }
}

// Even numbers in [-1, 1).
Tensor Random(const Shape& shape, uint64_t seed, uint32_t stream, ThreadPool& pool) {
  constexpr int64_t kPart = 1 << 16;
  Tensor tensor(DType::kF32, shape);
  float* data = tensor.DataAs<float>();
  const Rng rng(seed, stream);
  pool.ParallelFor(CeilDiv(shape.Elements(), kPart), [&](int64_t part, int) {
    const int64_t end = std::min(shape.Elements(), (part + 1) * kPart);
    for (int64_t i = part * kPart; i < end; ++i) {
      data[i] = 2.0f * rng.UniformAt(static_cast<uint64_t>(i)) - 1.0f;
    }
  });
  return tensor;
}

// The inputs and the output of one setting.
class Layer {
 public:
  Layer(const Setting& c, uint64_t seed, ThreadPool& pool)
      : x_(Random({c.tokens, c.in}, seed, 0, pool)),
        weights_(Random({c.out, c.in}, seed, 1, pool)),
        bias_(Random({c.out}, seed, 2, pool)),
        y_(DType::kF32, {c.tokens, c.out}) {
    args_.x = ConstView(x_);
    args_.y = y_;
    if (c.epilogue == "none") return;
    args_.epilogue.bias = {bias_.DataAs<float>(), static_cast<size_t>(c.out)};
    if (c.epilogue == "gelu") args_.epilogue.activation = Activation::kGeluTanh;
    if (c.epilogue == "silu") args_.epilogue.activation = Activation::kSilu;
    if (c.epilogue == "gate") {
      gate_ = Random({c.out}, seed, 3, pool);
      residual_ = Random({c.tokens, c.out}, seed, 4, pool);
      args_.epilogue.gate = ConstView(gate_);
      args_.epilogue.residual = ConstView(residual_);
    }
  }

  // From now on: the same numbers with weights of this type, into the same output.
  void Use(const AlignedBuffer<std::byte>& packed) {
    args_.weights = PackedLinear::View(packed.span());
  }
  const LinearArgs& Args() const { return args_; }

  AlignedBuffer<std::byte> Pack(WeightType type, ThreadPool& pool) const {
    const int64_t in = weights_.shape()[1], out = weights_.shape()[0];
    AlignedBuffer<std::byte> packed(PackedLinearBytes(in, out, type));
    PackLinear(weights_, type, packed.span(), pool);
    return packed;
  }

  struct Check {
    double max_error = 0.0;
    double tolerance = 0.0;  // where the error is the largest part of it
    double fraction = 0.0;   // of the tolerance, there
  };

  // The output so far against the reference: the corners and a random sample.
  Check CheckOutput(uint64_t seed) const {
    constexpr int kTokens = 32, kColumns = 64;
    const Rng rng(seed, 5);
    auto sample = [&](int count, int64_t extent, uint64_t from) {
      std::vector<int64_t> at = {0, extent - 1};
      for (int i = 2; i < count; ++i) {
        at.push_back(static_cast<int64_t>(
            rng.BelowAt(from + static_cast<uint64_t>(i), static_cast<uint64_t>(extent))));
      }
      return at;
    };
    Check check;
    for (int64_t token : sample(kTokens, y_.shape()[0], 0)) {
      for (int64_t column : sample(kColumns, y_.shape()[1], kTokens)) {
        const LinearReference r = ReferenceLinear(args_, weights_, x_, token, column);
        const double error = std::fabs(y_.view().Load(token, column) - r.value);
        check.max_error = std::isnan(error) ? error : std::max(check.max_error, error);
        const double fraction = std::isnan(error) ? HUGE_VAL : error / r.tolerance;
        if (fraction >= check.fraction) check.fraction = fraction, check.tolerance = r.tolerance;
      }
    }
    return check;
  }

 private:
  Tensor x_, weights_, bias_, gate_, residual_, y_;
  LinearArgs args_;
};

class LinearBench {
 public:
  LinearBench(const Options& options, const std::vector<Setting>& settings)
      : options_(options), settings_(settings) {}

  Table Run() {
    CheckedTurns turns("bench linear", settings_.size());
    for (const std::vector<size_t>& group : AlikeBut(&Setting::compute, settings_))
      RunGroup(group, turns);
    for (size_t i = 0; i < settings_.size(); ++i) AddRow(settings_[i], results_[i]);
    return std::move(table_);
  }

 private:
  struct Result {
    Layer::Check check;
    PeakTiming timing;
    double speedup = 0.0;
  };

  // Settings that differ in their arithmetic only.
  void RunGroup(const std::vector<size_t>& group, CheckedTurns& turns) {
    const Setting& setting = settings_[group[0]];
    turns.Prepare();
    ThreadPool pool(static_cast<int>(setting.threads));
    const auto seed = static_cast<uint64_t>(options_.seed);
    Layer layer(setting, seed, pool);
    std::vector<AlignedBuffer<std::byte>> packed;
    for (size_t i : group) packed.push_back(layer.Pack(settings_[i].Type(), pool));
    Workspace workspace;
    const auto run = [&](size_t i) {
      layer.Use(packed[i]);
      Linear(layer.Args(), pool, workspace);
    };
    const auto check = [&](size_t i) {
      const Layer::Check found = results_[group[i]].check = layer.CheckOutput(seed);
      if (found.fraction <= 1.0) return;
      throw Error(
          "{} tokens, {} -> {}: error {:.2g}, tolerance {:.2g}; a wrong answer is not timed",
          setting.tokens, setting.in, setting.out, found.max_error, found.tolerance);
    };
    const std::vector<PeakTiming> timings =
        turns.Time(pool, group.size(), run, check,
                   fmt::format("{} -> {}", setting.in, setting.out));
    for (size_t i = 0; i < group.size(); ++i) {
      results_[group[i]].timing = timings[i];
      results_[group[i]].speedup = timings[0].least / timings[i].least;
    }
  }

  void AddRow(const Setting& setting, const Result& result) {
    const PeakTiming& timing = result.timing;
    const double gflops = setting.Flops() / timing.seconds * 1e-9;
    table_.Add({std::string(ActiveTargetName()),
                setting.threads,
                setting.tokens,
                setting.in,
                setting.out,
                std::string(WeightTypeName(setting.Type())),
                setting.compute,
                setting.epilogue,
                {timing.peak_gflops, 1},
                {gflops, 1},
                {gflops / timing.peak_gflops, 3},
                {timing.seconds, 5},
                {result.speedup, 2},
                {result.check.max_error, fmt::format("{:.1e}", result.check.max_error)},
                {result.check.tolerance, fmt::format("{:.1e}", result.check.tolerance)}});
  }

  const Options& options_;
  const std::vector<Setting>& settings_;
  std::vector<Result> results_{settings_.size()};
  Table table_{{{"target"},
                {"threads"},
                {"tokens"},
                {"in"},
                {"out"},
                {"weights"},
                {"compute"},
                {"epilogue"},
                {"peak_gflops"},
                {"gflops"},
                {"fraction_of_peak"},
                {"seconds"},
                {"speedup"},
                {"max_error", false},
                {"tolerance", false}}};
};

}  // namespace

void RegisterBenchLinear(CLI::App& parent) {
  CLI::App& app =
      AddCommand(parent, "linear", "linear layers: GFLOP/s, and how much of the peak it is");
  auto options = std::make_shared<Options>();
  options->threads = {DefaultThreads()};
  auto flags = std::make_shared<std::vector<ListFlag<Setting>>>();
  auto add = [&](const CLI::Option* option, const auto& values, auto member) {
    flags->push_back(MakeListFlag(option, values, member));
  };
  const Bounds<int64_t> size = {.min = 1, .max = kMaxSize};
  add(AddNumbers(app, "--tokens", options->tokens, size, "rows of x"), options->tokens,
      &Setting::tokens);
  const CLI::Option* in = AddNumbers(app, "--in", options->in, size, "inputs");
  const CLI::Option* out =
      AddNumbers(app, "--out", options->out, size, "outputs; lists of --in and --out pair up");
  const size_t pair_flag = flags->size();
  flags->push_back({in, [options] { return options->Sizes(); },
                    [options](Setting& setting, size_t i) {
                      setting.in = options->in[std::min(i, options->in.size() - 1)];
                      setting.out = options->out[std::min(i, options->out.size() - 1)];
                    }});
  add(AddChoices(app, "--weights", options->weights, {"f32", "bf16"}, "how weights are packed"),
      options->weights, &Setting::weights);
  add(AddChoices(app, "--compute", options->computes, {"f32", "int16", "int8"},
                 "arithmetic; integers have weights of their own"),
      options->computes, &Setting::compute);
  add(AddChoices(app, "--epilogue", options->epilogues, {"none", "bias", "gelu", "silu", "gate"},
                 "what is fused: a bias; after it GELU, SiLU, or a gate and a residual"),
      options->epilogues, &Setting::epilogue);
  add(AddNumbers(app, "-t,--threads", options->threads, {.min = 1, .max = kMaxThreads}, "threads"),
      options->threads, &Setting::threads);
  AddNumber(app, "--seed", options->seed, {.min = 0}, "of the numbers");
  AddJson(app, options->json);
  app.footer(kExamples);
  app.callback([&app, options, flags, pair_flag, in, out] {
    CheckPairs(*options);
    if (in->empty()) (*flags)[pair_flag].option = out;  // whichever of the two was given
    const std::vector<Setting> settings = Combinations(app, *flags);
    const Table table = LinearBench(*options, settings).Run();
    PrintTable(table, options->json);
  });
}

}  // namespace equitile

// `equitile bench attention`: how close to the machine's peak block-sparse attention comes, on kept
// blocks.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "apps/bench/attention_workload.h"
#include "apps/bench/bench_output.h"
#include "apps/bench/checked_turns.h"
#include "apps/bench/combinations.h"
#include "apps/cli/commands.h"
#include "apps/cli/flags.h"
#include "apps/cli/table.h"
#include "equitile/base/error.h"
#include "equitile/base/topology.h"
#include "equitile/io/records/mask_file.h"
#include "equitile/kernel/target.h"

namespace equitile {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  equitile bench attention  # dense, 8192 tokens, 4 heads\n"
    "  equitile bench attention --density 1,0.5,0.25,0.1 --head-dim 64,128\n"
    "  equitile bench attention --mask one --heads 128 --tokens 4096\n"
    "  equitile bench attention --compute f32,int16,int8 --head-dim 32,64,128\n"
    "  equitile bench attention --mask mask.npy --head-dim 128 --json\n"
    "Flops are 4 * head_dim per kept query-key pair. Peak is the best of several windows of\n"
    "multiply-adds on all threads, in turns with the kernel, which counts by its median.\n"
    "Several --compute of the same call take turns; speedup: over the first, by the least time,\n"
    "on one thread those of the processor, which other work does not count in.";

constexpr int64_t kMaxTokens = int64_t{1} << 22;
constexpr int64_t kMaxHeads = int64_t{1} << 16;
constexpr int64_t kMaxThreads = 4096;

struct Options {
  std::vector<int64_t> heads = {4}, tokens = {8192}, head_dims = {128}, blocks = {64}, threads;
  std::vector<double> densities = {1.0};
  std::vector<std::string> dtypes = {"f32"}, computes = {"f32"};
  std::string mask = "random";
  int64_t layer = 0;
  int64_t seed = 1;
  bool json = false;
};

// One line of the result.
struct Setting {
  int64_t heads, tokens, head_dim, block, threads;
  double density;
  std::string dtype, compute;

  bool operator==(const Setting&) const = default;
};

struct Result {
  AttentionError error;
  PeakTiming timing;
  double gflops = 0.0, density = 0.0, speedup = 0.0;
  BlockGrid grid;
  int64_t heads = 0, kept_blocks = 0;
};

void CheckValues(const Options& options) {
  for (double density : options.densities) {
    if (!(density > 0.0 && density <= 1.0))
      throw InputError("--density {}: must be above 0 and at most 1", density);
  }
  for (int64_t head_dim : options.head_dims) {
    if (head_dim <= 0 || head_dim > kMaxHeadDim || head_dim % kHeadDimStep != 0)
      throw InputError("--head-dim {}: must be a multiple of {} from {} to {}", head_dim,
                       kHeadDimStep, kHeadDimStep, kMaxHeadDim);
  }
  for (int64_t block : options.blocks) {
    if (block < kMinBlockTokens || block > kMaxBlockTokens || block % kStripTokens != 0)
      throw InputError("--block {}: must be a multiple of {} from {} to {}", block, kStripTokens,
                       kMinBlockTokens, kMaxBlockTokens);
  }
}

// The mask of a file, and that flags which say otherwise are refused.
struct FileMask {
  BlockMask mask;
  std::vector<TokenOrder> orders;
  TokenGrid grid;
};

FileMask ReadMask(const Options& options) {
  const MaskFile file = ReadMaskFile(options.mask);
  const auto layers = static_cast<int64_t>(file.layers.size());
  if (options.layer >= layers) {
    throw InputError("--layer {}: {} has {} layer{}, counted from 0", options.layer, options.mask,
                     layers, layers == 1 ? "" : "s");
  }
  FileMask result{
      .mask = file.layers[static_cast<size_t>(options.layer)], .orders = {}, .grid = {}};
  if (file.grid) {
    result.orders = file.orders;
    result.grid = *file.grid;
  }
  return result;
}

void CheckAgainstFile(const CLI::App& app, const Setting& setting, const Options& options,
                      const BlockMask& mask) {
  auto check = [&](const char* flag, int64_t said, int64_t is) {
    if (app.count(flag) > 0 && said != is)
      throw InputError("{} {}: {} says {}; leave the flag out", flag, said, options.mask, is);
  };
  check("--heads", setting.heads, mask.lanes().heads);
  check("--tokens", setting.tokens, mask.grid().q_tokens);
  check("--block", setting.block, mask.grid().block_tokens);
}

class AttentionBench {
 public:
  AttentionBench(const CLI::App& app, const Options& options, const std::vector<Setting>& settings)
      : options_(options), settings_(settings) {
    if (options.mask == "random" || options.mask == "one") return;
    file_ = std::make_unique<FileMask>(ReadMask(options));
    for (const Setting& setting : settings) CheckAgainstFile(app, setting, options, file_->mask);
  }

  Table Run() {
    CheckedTurns turns("bench attention", settings_.size());
    for (const std::vector<size_t>& group : AlikeBut(&Setting::compute, settings_))
      RunGroup(group, turns);
    for (size_t i = 0; i < settings_.size(); ++i) AddRow(settings_[i], results_[i]);
    return std::move(table_);
  }

 private:
  BlockMask Mask(const Setting& setting) const {
    if (file_) return file_->mask;
    const Lanes lanes = {.batch = 1, .heads = setting.heads};
    const BlockGrid grid = {
        .q_tokens = setting.tokens, .kv_tokens = setting.tokens, .block_tokens = setting.block};
    const auto seed = static_cast<uint64_t>(options_.seed);
    return options_.mask == "one" ? OneBlockMask(lanes, grid, seed)
                                  : RandomRowMask(lanes, grid, setting.density, seed);
  }

  // Settings that differ in their arithmetic only.
  void RunGroup(const std::vector<size_t>& group, CheckedTurns& turns) {
    const Setting& setting = settings_[group[0]];
    turns.Prepare();
    const BlockMask mask = Mask(setting);
    ThreadPool pool(static_cast<int>(setting.threads));
    AttentionWorkload::Options workload_options = {.head_dim = setting.head_dim,
                                                   .dtype = ParseDType(setting.dtype),
                                                   .seed = static_cast<uint64_t>(options_.seed),
                                                   .orders = {},
                                                   .token_grid = {}};
    if (file_) {
      workload_options.orders = file_->orders;
      workload_options.token_grid = file_->grid;
    }
    AttentionWorkload workload(mask, workload_options, pool);
    Workspace workspace;
    const auto run = [&](size_t i) {
      workload.Use(ParseCompute(settings_[group[i]].compute));
      Attention(workload.Args(), pool, workspace);
    };
    const auto check = [&](size_t i) { results_[group[i]].error = workload.Check(pool); };
    const std::vector<PeakTiming> timings =
        turns.Time(pool, group.size(), run, check,
                   fmt::format("head_dim {}, density {:.2f}", setting.head_dim, mask.Density()));
    for (size_t i = 0; i < group.size(); ++i) {
      Result& result = results_[group[i]];
      result.timing = timings[i];
      result.gflops = workload.Flops() / timings[i].seconds * 1e-9;
      result.density = options_.mask == "random" ? setting.density : mask.Density();
      result.speedup = timings[0].least / timings[i].least;
      result.grid = mask.grid();
      result.heads = mask.lanes().heads;
      result.kept_blocks = mask.Kept();
    }
  }

  void AddRow(const Setting& setting, const Result& result) {
    const double max_error = result.error.worst_fraction * result.error.tolerance;
    table_.Add({std::string(ActiveTargetName()),
                setting.threads,
                setting.dtype,
                setting.compute,
                setting.head_dim,
                result.grid.q_tokens,
                result.heads,
                result.grid.block_tokens,
                options_.mask,
                {result.density, 3},
                result.kept_blocks,
                {result.timing.peak_gflops, 1},
                {result.gflops, 1},
                {result.gflops / result.timing.peak_gflops, 3},
                {result.timing.seconds, 5},
                {result.speedup, 2},
                {max_error, fmt::format("{:.1e}", max_error)},
                {result.error.tolerance, fmt::format("{:.1e}", result.error.tolerance)}});
  }

  const Options& options_;
  const std::vector<Setting>& settings_;
  std::vector<Result> results_{settings_.size()};
  std::unique_ptr<FileMask> file_;
  Table table_{{{"target"},
                {"threads"},
                {"dtype"},
                {"compute"},
                {"head_dim"},
                {"tokens"},
                {"heads"},
                {"block"},
                {"mask"},
                {"density"},
                {"kept_blocks", false},
                {"peak_gflops"},
                {"gflops"},
                {"fraction_of_peak"},
                {"seconds"},
                {"speedup"},
                {"max_error", false},
                {"tolerance", false}}};
};

}  // namespace

void RegisterBenchAttention(CLI::App& parent) {
  CLI::App& app =
      AddCommand(parent, "attention",
                 "block-sparse attention: GFLOP/s on kept blocks, and how much of the peak it is");
  auto options = std::make_shared<Options>();
  options->threads = {DefaultThreads()};
  auto flags = std::make_shared<std::vector<ListFlag<Setting>>>();
  auto add = [&](const CLI::Option* option, const auto& values, auto member) {
    flags->push_back(MakeListFlag(option, values, member));
  };
  add(AddNumbers(app, "--heads", options->heads, {.min = 1, .max = kMaxHeads}, "heads"),
      options->heads, &Setting::heads);
  add(AddNumbers(app, "--tokens", options->tokens, {.min = 1, .max = kMaxTokens},
                 "queries and keys of each head"),
      options->tokens, &Setting::tokens);
  add(AddNumbers(app, "--head-dim", options->head_dims, {}, "numbers per token and head"),
      options->head_dims, &Setting::head_dim);
  add(AddNumbers(app, "--density", options->densities, {},
                 "kept blocks of each row of a random mask"),
      options->densities, &Setting::density);
  add(AddNumbers(app, "--block", options->blocks, {}, "tokens per block"), options->blocks,
      &Setting::block);
  add(AddNumbers(app, "-t,--threads", options->threads, {.min = 1, .max = kMaxThreads}, "threads"),
      options->threads, &Setting::threads);
  add(AddChoices(app, "--dtype", options->dtypes, {"f32", "bf16", "f16"}, "how numbers are stored"),
      options->dtypes, &Setting::dtype);
  add(AddChoices(app, "--compute", options->computes, {"f32", "int16", "int8"},
                 "in what products are computed"),
      options->computes, &Setting::compute);
  app.add_option("--mask", options->mask,
                 "random; one: one block per row; or a file, which then says heads, tokens, block")
      ->type_name("random|one|FILE")
      ->capture_default_str();
  AddNumber(app, "--layer", options->layer, {.min = 0}, "of a mask file with several");
  AddNumber(app, "--seed", options->seed, {.min = 0}, "of masks and numbers");
  AddJson(app, options->json);
  app.footer(kExamples);
  app.callback([&app, options, flags] {
    CheckValues(*options);
    const std::vector<Setting> settings = Combinations(app, *flags);
    const Table table = AttentionBench(app, *options, settings).Run();
    PrintTable(table, options->json);
  });
}

}  // namespace equitile

#include "equitile/search/mask_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "equitile/base/error.h"
#include "equitile/io/records/mask_file.h"
#include "equitile/search/trials/column_masses.h"
#include "equitile/search/trials/order_masses.h"
#include "equitile/search/trials/trial_source.h"
#include "equitile/sparsity/published/static_masks.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

CalibrationSetup SetupOf(const MaskSearchOptions& options) {
  CalibrationSetup setup{.dense_steps = options.dense_steps,
                         .identity = {},
                         .checkpoint = options.checkpoint,
                         .resumes = options.resumes};
  setup.identity["objective"] = MaskObjectiveName(options.objective);
  // Windows to try follow from it; blocks to keep are chosen afterwards.
  if (options.objective == MaskObjective::kSta)
    setup.identity["density"] = fmt::format("{}", options.density);
  return setup;
}

class StaticSearch {
 public:
  StaticSearch(const GenerateRequest& request, const MaskSearchOptions& options,
               CalibrationRun& run)
      : model_(request.transformer),
        options_(options),
        run_(run),
        sums_(model_.layers, model_.heads, run.grid()) {}

  CalibrationState State() {
    return {.get =
                [this] {
                  SourceState parts;
                  sums_.AddTo(parts);
                  return parts;
                },
            .set = [this](const SourceState& parts) { sums_.Restore(parts); }};
  }

  CalibrationPass Pass() {
    return {.prompts = 0,
            .group = 1,
            .is_dense = true,
            .source =
                [this](const SourceContext& context, int64_t) {
                  return std::make_unique<OrderMassSource>(context, options_.dense_steps, sums_);
                },
            .probe = {}};
  }

  LaneMasks Layer(int64_t layer) const {
    return MasksByOrder(sums_, layer, model_.heads, run_.token_grid(), options_.density);
  }

 private:
  const WanConfig& model_;
  const MaskSearchOptions& options_;
  CalibrationRun& run_;
  OrderMasses sums_;
};

class WindowSearch {
 public:
  WindowSearch(const GenerateRequest& request, const MaskSearchOptions& options,
               CalibrationRun& run, ThreadPool& pool)
      : request_(request),
        model_(request.transformer),
        options_(options),
        run_(run),
        trials_({.grid = run.token_grid(),
                 .block_tokens = run.grid().block_tokens,
                 .heads = model_.heads,
                 .options = WindowOptions(run.token_grid(), options.density)},
                pool),
        no_columns_(MakeColumnTable(model_.layers, model_.heads, 0)),
        table_({.prompts = run.Prompts(),
                .steps = run.SparseSteps(),
                .layers = model_.layers,
                .heads = model_.heads,
                .options = std::ssize(trials_.place().options)}) {}

  CalibrationState State() {
    return {.get =
                [this] {
                  SourceState parts;
                  table_.AddTo(parts);
                  return parts;
                },
            .set = [this](const SourceState& parts) { table_.Restore(parts); }};
  }

  CalibrationPass Pass() {
    return {.prompts = 0,
            .group = 1,
            .is_dense = true,
            .source =
                [this](const SourceContext& context, int64_t first) {
                  const TrialSourceOptions options{.dense_steps = options_.dense_steps,
                                                   .first_prompt = first,
                                                   .passes = request_.config.Passes(),
                                                   .walks_by = std::nullopt,
                                                   .goes_on_with = nullptr};
                  return std::make_unique<TrialSource>(context, trials_, no_columns_, options,
                                                       table_);
                },
            .probe = {}};
  }

  // For each head the window with the least error, mean over prompts and steps.
  LaneMasks Layer(int64_t layer) const {
    const StaticMaskPlace place{.lanes = {.batch = 1, .heads = 1},
                                .grid = run_.token_grid(),
                                .block_tokens = run_.grid().block_tokens};
    LaneMasks::Parts parts{.blocks = BlockMask({.batch = 1, .heads = model_.heads}, run_.grid()),
                           .token_grid = run_.token_grid(),
                           .orders = {},
                           .tails = {}};
    for (int64_t head = 0; head < model_.heads; ++head) {
      SlidingTileOptions tiles;
      tiles.window = trials_.place().options[Best(layer, head)].window;
      const LaneMasks one = SlidingTileMasks(place, tiles);
      for (int64_t q = 0; q < one.blocks().QBlocks(); ++q)
        std::ranges::copy(one.blocks().Row(0, q), parts.blocks.MutableRow(head, q).begin());
      parts.orders.push_back(one.orders().empty() ? run_.token_grid().home : one.orders()[0]);
    }
    return LaneMasks(std::move(parts));
  }

 private:
  size_t Best(int64_t layer, int64_t head) const {
    size_t best = 1;
    double least = 0;
    for (size_t option = 1; option < trials_.place().options.size(); ++option) {
      double error = 0;
      for (int64_t prompt = 0; prompt < run_.Prompts(); ++prompt) {
        for (int64_t step = 0; step < run_.SparseSteps(); ++step)
          error += table_.Mse({prompt, step, layer, head, static_cast<int64_t>(option)});
      }
      if (option > 1 && error >= least) continue;
      best = option;
      least = error;
    }
    return best;
  }

  const GenerateRequest& request_;
  const WanConfig& model_;
  const MaskSearchOptions& options_;
  CalibrationRun& run_;
  HeadTrials trials_;
  ColumnTable no_columns_;
  ErrorTable table_;
};

template <typename Search>
MaskSearchOutcome Calibrated(Search&& search, CalibrationRun& run, int64_t layers) {
  MaskSearchOutcome outcome;
  const CalibrationState state = search.State();
  const CalibrationPass pass = search.Pass();
  if (!run.Begin(state)) {
    outcome.interrupted = run.Where();
    return outcome;
  }
  run.MeasuredMachine();  // which the checkpoints hold
  if (!run.Run({&pass, 1}, state)) {
    outcome.interrupted = run.Where();
    return outcome;
  }
  for (int64_t layer = 0; layer < layers; ++layer) outcome.layers.push_back(search.Layer(layer));
  return outcome;
}

}  // namespace

std::string_view MaskObjectiveName(MaskObjective objective) {
  return objective == MaskObjective::kStatic ? "static" : "sta";
}

double MaskSearchOutcome::Density() const {
  double sum = 0;
  for (const LaneMasks& masks : layers) sum += masks.blocks().Density();
  return sum / static_cast<double>(layers.size());
}

MaskSearchOutcome RunMaskSearch(const GenerateRequest& request, const Recipe& agreed,
                                const MaskSearchOptions& options, Communicator& comm, int threads,
                                const SearchTools& tools) {
  const double begin = comm.Now();
  ThreadPool pool(threads);
  CalibrationRun run(request, agreed, SetupOf(options), comm, pool, tools);
  const int64_t layers = request.transformer.layers;
  MaskSearchOutcome outcome =
      options.objective == MaskObjective::kStatic
          ? Calibrated(StaticSearch(request, options, run), run, layers)
          : Calibrated(WindowSearch(request, options, run, pool), run, layers);
  outcome.seconds = comm.Now() - begin;
  outcome.dense_seconds = run.DenseSeconds();
  return outcome;
}

int64_t CountMaskSearchBytes(const GenerateRequest& request, const MaskSearchOptions& options) {
  const WanConfig& model = request.transformer;
  const int64_t tokens = VideoTokens(model, request.config);
  const BlockGrid grid = {.q_tokens = tokens, .kv_tokens = tokens};
  if (options.objective == MaskObjective::kStatic)
    return 2 * OrderMasses::Bytes(model.layers, model.heads, grid);
  return 2 * ErrorTable::Bytes({.prompts = std::ssize(request.tasks),
                                .steps = request.config.steps - options.dense_steps,
                                .layers = model.layers,
                                .heads = model.heads,
                                .options = 7});
}

namespace {

// "layer-007.npy", or what describes it.
bool IsLayerFile(const fs::path& path) {
  const std::string name = path.stem().string();
  return name.starts_with("layer-") && name.find_first_not_of("0123456789", 6) == name.npos &&
         (path.extension() == ".npy" || path.extension() == ".json");
}

}  // namespace

void CheckMaskFolder(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) return;
  if (!fs::is_directory(folder, ignored)) {
    throw InputError("-o {}: is a file; masks need a folder, of another name", folder.string());
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".npy" || IsLayerFile(entry.path())) continue;
    throw InputError("-o {}: holds other masks, {}; give a folder of their own", folder.string(),
                     entry.path().filename().string());
  }
}

void WriteMaskFolder(const fs::path& folder, MaskObjective objective,
                     const std::vector<LaneMasks>& layers) {
  CheckMaskFolder(folder);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw InputError("{}: cannot be made: {}", folder.string(), error.message());
  std::vector<fs::path> earlier;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (IsLayerFile(entry.path())) earlier.push_back(entry.path());
  }
  for (const fs::path& file : earlier) fs::remove(file, error);
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    MaskFile file;
    file.method = MaskObjectiveName(objective);
    file.layers.push_back(layers[layer].blocks());
    file.grid = layers[layer].token_grid();
    const int64_t heads = layers[layer].blocks().lanes().heads;
    file.orders = layers[layer].orders();
    if (file.orders.empty())
      file.orders.assign(static_cast<size_t>(heads), layers[layer].token_grid().home);
    file.layer = static_cast<int64_t>(layer);
    WriteMaskFile(folder / fmt::format("layer-{:03}.npy", layer), file);
  }
}

}  // namespace equitile

#include "equitile/search/pattern_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "equitile/base/error.h"
#include "equitile/generate/memory_estimate.h"
#include "equitile/search/column_masses.h"
#include "equitile/search/row_sample.h"
#include "equitile/search/trial_source.h"

namespace equitile {
namespace {

bool IsPaper(const SearchOptions& options) { return options.choice.objective == Objective::kPaper; }

CalibrationSetup SetupOf(const SearchOptions& options) {
  CalibrationSetup setup{.dense_steps = options.dense_steps,
                         .identity = {},
                         .checkpoint = options.checkpoint,
                         .resumes = options.resumes};
  setup.identity["objective"] = ObjectiveName(options.choice.objective);
  // Where choices steer the walk, what they are made by decides what is found.
  if (IsPaper(options)) {
    setup.identity["lambda"] = fmt::format("{}", options.choice.loss.lambda);
    setup.identity["epsilon"] = fmt::format("{}", options.choice.loss.epsilon);
    setup.identity["density of modes"] = fmt::format("{}", options.paper_density);
  }
  return setup;
}

class PatternSearch {
 public:
  PatternSearch(const GenerateRequest& request, const Recipe& agreed, const SearchOptions& options,
                Communicator& comm, int threads, const SearchTools& tools)
      : request_(request),
        recipe_(agreed),
        options_(options),
        model_(request.transformer),
        comm_(comm),
        pool_(threads),
        run_(request, agreed, SetupOf(options), comm, pool_, tools),
        head_options_(OptionsFor(options)),
        trials_({.grid = run_.token_grid(),
                 .block_tokens = run_.grid().block_tokens,
                 .heads = model_.heads,
                 .options = head_options_},
                pool_),
        columns_(MakeColumnTable(model_.layers, model_.heads, run_.grid().KvBlocks())),
        table_(TableShape(run_.Prompts(), run_.SparseSteps())) {}

  SearchOutcome Run() {
    const double begin = comm_.Now();
    const CalibrationState state{.get = [this] { return Parts(); },
                                 .set = [this](const SourceState& parts) { Restore(parts); }};
    SearchOutcome outcome;
    if (!run_.Begin(state)) {
      outcome.interrupted = run_.Where();
      return outcome;
    }
    const SpeedModel speed(run_.MeasuredMachine(), {.model = model_,
                                                    .grid = run_.token_grid(),
                                                    .block_tokens = run_.grid().block_tokens,
                                                    .text_rows = request_.config.text_rows,
                                                    .passes = request_.config.Passes(),
                                                    .ranks = options_.for_ranks});
    CheckReach(speed);
    const CalibrationPass passes[] = {MassesPass(), TrialsPass()};
    if (!run_.Run(passes, state)) {
      outcome.interrupted = run_.Where();
      return outcome;
    }
    Choose(speed, outcome);
    outcome.seconds = comm_.Now() - begin;
    outcome.dense_seconds = run_.DenseSeconds();
    return outcome;
  }

 private:
  ErrorTableShape TableShape(int64_t prompts, int64_t steps) const {
    return {.prompts = prompts,
            .steps = steps,
            .layers = model_.layers,
            .heads = model_.heads,
            .options = std::ssize(head_options_)};
  }

  SourceState Parts() const {
    SourceState parts;
    PutColumns(columns_, parts);
    table_.AddTo(parts);
    return parts;
  }
  void Restore(const SourceState& parts) {
    TakeColumns(parts, columns_);
    table_.Restore(parts);
  }

  // What can be known not to work before any work.
  void CheckReach(const SpeedModel& speed) const {
    const ChoiceDials& dials = options_.choice;
    if (dials.objective != Objective::kBudget || dials.target != TargetKind::kSpeedup) return;
    const double most = speed.Speedup(options_.dense_steps, run_.SparseSteps(), 0);
    if (dials.target_value <= most) return;
    throw InputError(
        "--speedup {}: without any self-attention after the {} dense steps it would be {:.2f}",
        dials.target_value, options_.dense_steps, most);
  }

  CalibrationPass MassesPass() {
    return {.group = 1,
            .source =
                [this](const SourceContext& context, int64_t) {
                  return std::make_unique<ColumnMassSource>(context, options_.dense_steps,
                                                            columns_);
                },
            .probe = {}};
  }

  // The paper's walk needs all prompts at once: what it chooses in a layer, all go on with.
  CalibrationPass TrialsPass() {
    return {.group = IsPaper(options_) ? run_.Prompts() : 1,
            .source = [this](const SourceContext& context,
                             int64_t first) { return MakeTrials(context, first, table_); },
            .probe =
                [this](const SelfAttentionCall& call, const SourceContext& context) {
                  ErrorTable unused(TableShape(1, 1));
                  MakeTrials(context, 0, unused)->MaskFor(call);
                }};
  }

  std::unique_ptr<MaskSource> MakeTrials(const SourceContext& context, int64_t first,
                                         ErrorTable& table) {
    TrialSourceOptions options{.dense_steps = options_.dense_steps,
                               .first_prompt = first,
                               .passes = request_.config.Passes(),
                               .walks_by = std::nullopt};
    if (IsPaper(options_)) options.walks_by = options_.choice.loss;
    return std::make_unique<TrialSource>(context, trials_, columns_, options, table);
  }

  void Choose(const SpeedModel& speed, SearchOutcome& outcome) {
    run_.Say("choosing");
    const std::vector<float> sigmas = run_.SparseSigmas();
    const Calibration calibration{.table = table_,
                                  .options = head_options_,
                                  .columns = columns_,
                                  .grid = run_.token_grid(),
                                  .block_tokens = run_.grid().block_tokens,
                                  .dense_steps = options_.dense_steps,
                                  .sigmas = sigmas,
                                  .speed = speed};
    outcome.choice = ChoosePattern(calibration, options_.choice);
    outcome.file = ToPatternFile(calibration, outcome.choice);
    FillHeader(outcome.choice, outcome.file);
  }

  void FillHeader(const PatternChoice& choice, PatternFile& file) {
    const std::string fingerprint = recipe_.Text("model_fingerprint");
    std::from_chars(fingerprint.data(), fingerprint.data() + fingerprint.size(), file.model, 16);
    for (const GenerateTask& task : request_.tasks) {
      file.prompts.push_back(task.prompt);
      file.seeds.push_back(static_cast<int64_t>(task.seed));
    }
    const ChoiceDials& dials = options_.choice;
    file.objective = ObjectiveName(dials.objective);
    const int64_t rows = run_.grid().QBlocks();
    const Machine& machine = run_.MeasuredMachine();
    file.dials = {{"steps", static_cast<double>(request_.config.steps)},
                  {"dense_steps", static_cast<double>(options_.dense_steps)},
                  {"flow_shift", request_.config.flow_shift},
                  {"for_ranks", options_.for_ranks},
                  {"rows", static_cast<double>(SampledRows(rows)) / static_cast<double>(rows)},
                  {"kernel_gflops", machine.kernel.front().gflops},
                  {"kernel_row_seconds", machine.kernel.front().row_seconds},
                  {"peak_gflops", machine.peak_gflops},
                  {"error", choice.error},
                  {"error_deviation", choice.error_deviation},
                  {"step_agreement", choice.step_agreement},
                  {"prompt_agreement", choice.prompt_agreement}};
    if (dials.objective == Objective::kBudget) {
      constexpr const char* kTargets[] = {"target_density", "target_error", "target_speedup"};
      file.dials[kTargets[static_cast<size_t>(dials.target)]] = dials.target_value;
    } else {
      file.dials["lambda"] = dials.loss.lambda;
      file.dials["epsilon"] = dials.loss.epsilon;
    }
    if (IsPaper(options_)) file.dials["mode_density"] = options_.paper_density;
  }

  const GenerateRequest& request_;
  const Recipe& recipe_;
  const SearchOptions& options_;
  const WanConfig& model_;
  Communicator& comm_;
  ThreadPool pool_;
  CalibrationRun run_;
  std::vector<HeadOption> head_options_;
  HeadTrials trials_;
  ColumnTable columns_;
  ErrorTable table_;
};

}  // namespace

std::vector<HeadOption> OptionsFor(const SearchOptions& options) {
  switch (options.choice.objective) {
    case Objective::kPaper:
      return PaperOptions(options.paper_density);
    case Objective::kRelative:
      return LadderOptions();
    case Objective::kBudget:
      return BudgetOptions();
  }
  EQ_CHECK(false);
}

SearchBytes CountSearchBytes(const GenerateRequest& request, const SearchOptions& options,
                             int32_t ranks, int threads) {
  const WanConfig& model = request.transformer;
  const int64_t prompts = std::ssize(request.tasks);
  const int64_t tokens = VideoTokens(model, request.config);
  const int64_t at_once = IsPaper(options) ? prompts : 1;
  const int64_t lanes = at_once * request.config.Passes() * model.heads;
  const int64_t gathered = LaneGather::LaneBytes(tokens, model.head_dim);
  const int64_t held = std::clamp<int64_t>(kRoundBytes / gathered, 1, CeilDiv(lanes, ranks));
  return {.activations = at_once * CountRunBytes(request, 0, ranks, threads).activations,
          .table = 2 * ErrorTable::Bytes({.prompts = prompts,
                                          .steps = request.config.steps - options.dense_steps,
                                          .layers = model.layers,
                                          .heads = model.heads,
                                          .options = std::ssize(OptionsFor(options))}),
          .lanes = held * (gathered + HeadTrials::LaneBytes(tokens, model.head_dim))};
}

SearchOutcome RunSearch(const GenerateRequest& request, const Recipe& agreed,
                        const SearchOptions& options, Communicator& comm, int threads,
                        const SearchTools& tools) {
  return PatternSearch(request, agreed, options, comm, threads, tools).Run();
}

}  // namespace equitile

#include "equitile/search/pattern_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/generate/memory_estimate.h"
#include "equitile/search/column_masses.h"
#include "equitile/search/row_sample.h"
#include "equitile/search/trial_source.h"
#include "equitile/sparsity/pattern_masks.h"

namespace equitile {
namespace {

// Of the calibration's own, to compare the validation with.
constexpr size_t kCalibrationVideos = 4;

bool LooksTwice(const SearchOptions& options) {
  return options.choice.objective == Objective::kBudget && options.looks_twice;
}

// A second look costs as much per prompt as the first; half of them tell enough.
int64_t SecondPrompts(int64_t prompts) { return CeilDiv(prompts, 2); }

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
        tools_(tools),
        run_(request, agreed, SetupOf(options), comm, pool_, tools),
        head_options_(OptionsFor(options)),
        trials_({.grid = run_.token_grid(),
                 .block_tokens = run_.grid().block_tokens,
                 .heads = model_.heads,
                 .options = head_options_},
                pool_),
        columns_(MakeColumnTable(model_.layers, model_.heads, run_.grid().KvBlocks())),
        table_(TableShape(run_.Prompts(), run_.SparseSteps())),
        second_table_(TableShape(SecondPrompts(run_.Prompts()), run_.SparseSteps())) {}

  SearchOutcome Run() {
    const double begin = comm_.Now();
    const CalibrationState state{.get = [this] { return Parts(); },
                                 .set = [this](const SourceState& parts) { Restore(parts); }};
    SearchOutcome outcome;
    if (!run_.Begin(state)) {
      outcome.interrupted = run_.Where();
      return outcome;
    }
    speed_ = std::make_unique<SpeedModel>(run_.MeasuredMachine(),
                                          SpeedPlace{.model = model_,
                                                     .grid = run_.token_grid(),
                                                     .block_tokens = run_.grid().block_tokens,
                                                     .text_rows = request_.config.text_rows,
                                                     .passes = request_.config.Passes(),
                                                     .ranks = options_.for_ranks});
    sigmas_ = run_.SparseSigmas();
    CheckReach(*speed_);
    std::vector<CalibrationPass> passes = {MassesPass(), TrialsPass()};
    if (LooksTwice(options_)) passes.push_back(SecondPass());
    if (!run_.Run(passes, state) || !Choose(outcome)) {
      outcome.interrupted = run_.Where();
      return outcome;
    }
    outcome.seconds = comm_.Now() - begin;
    outcome.dense_seconds = run_.DenseSeconds();
    Judge(outcome);
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
    if (LooksTwice(options_)) second_table_.AddTo(parts, "second.");
    return parts;
  }
  void Restore(const SourceState& parts) {
    TakeColumns(parts, columns_);
    table_.Restore(parts);
    if (LooksTwice(options_)) second_table_.Restore(parts, "second.");
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
    CalibrationPass pass;
    pass.source = [this](const SourceContext& context, int64_t) {
      return std::make_unique<ColumnMassSource>(context, options_.dense_steps, columns_);
    };
    return pass;
  }

  // The paper's walk needs all prompts at once: what it chooses in a layer, all go on with.
  CalibrationPass TrialsPass() {
    CalibrationPass pass;
    pass.group = IsPaper(options_) ? run_.Prompts() : 1;
    pass.source = [this](const SourceContext& context, int64_t first) {
      return MakeTrials(context, first, table_, nullptr);
    };
    pass.probe = [this](const SelfAttentionCall& call, const SourceContext& context) {
      Probe(call, context);
    };
    return pass;
  }

  // Errors of a layer grow with what the layers before have left out: tried again with these
  // sparse, as the first look has chosen.
  CalibrationPass SecondPass() {
    CalibrationPass pass;
    pass.prompts = SecondPrompts(run_.Prompts());
    pass.source = [this](const SourceContext& context, int64_t first) {
      if (first_file_ == nullptr) {
        const Calibration calibration = CalibrationOf(table_);
        first_file_ = std::make_shared<PatternFile>(
            ToPatternFile(calibration, ChoosePattern(calibration, options_.choice)));
      }
      return MakeTrials(context, first, second_table_, first_file_);
    };
    pass.probe = [this](const SelfAttentionCall& call, const SourceContext& context) {
      Probe(call, context);
    };
    return pass;
  }

  void Probe(const SelfAttentionCall& call, const SourceContext& context) {
    ErrorTable unused(TableShape(1, 1));
    MakeTrials(context, 0, unused, nullptr)->MaskFor(call);
  }

  std::unique_ptr<MaskSource> MakeTrials(const SourceContext& context, int64_t first,
                                         ErrorTable& table,
                                         std::shared_ptr<const PatternFile> goes_on_with) {
    TrialSourceOptions options{.dense_steps = options_.dense_steps,
                               .first_prompt = first,
                               .passes = request_.config.Passes(),
                               .walks_by = std::nullopt,
                               .goes_on_with = std::move(goes_on_with)};
    if (IsPaper(options_)) options.walks_by = options_.choice.loss;
    return std::make_unique<TrialSource>(context, trials_, columns_, options, table);
  }

  Calibration CalibrationOf(const ErrorTable& table) const {
    return {.table = table,
            .options = head_options_,
            .columns = columns_,
            .grid = run_.token_grid(),
            .block_tokens = run_.grid().block_tokens,
            .dense_steps = options_.dense_steps,
            .sigmas = sigmas_,
            .speed = *speed_};
  }

  struct Found {
    std::string name;
    PatternChoice choice;
    PatternFile file;
  };

  Found Find(std::string name, const ErrorTable& table, const ChoiceDials& dials) const {
    const Calibration calibration = CalibrationOf(table);
    Found found{.name = std::move(name), .choice = ChoosePattern(calibration, dials), .file = {}};
    found.file = ToPatternFile(calibration, found.choice);
    return found;
  }

  // All that a budget might have chosen, each different from the others.
  std::vector<Found> FindAll() const {
    ChoiceDials one_range = options_.choice;
    one_range.step_ranges = StepRangesKind::kOne;
    std::vector<Found> all;
    const auto add = [&](Found found) {
      for (const Found& other : all) {
        if (other.file.ranges == found.file.ranges) return;
      }
      all.push_back(std::move(found));
    };
    add(Find("first look", table_, options_.choice));
    if (!LooksTwice(options_)) return all;
    add(Find("first look, one range", table_, one_range));
    add(Find("second look", second_table_, options_.choice));
    add(Find("second look, one range", second_table_, one_range));
    return all;
  }

  // False: interrupted.
  bool Choose(SearchOutcome& outcome) {
    run_.Say("choosing");
    std::vector<Found> all = FindAll();
    size_t best = 0;
    if (all.size() > 1) {
      const std::vector<double> errors = VelocityErrors(all);
      if (errors.empty()) return false;
      best = static_cast<size_t>(std::min_element(errors.begin(), errors.end()) - errors.begin());
      for (size_t i = 0; i < all.size(); ++i) {
        outcome.candidates.push_back(
            {.name = all[i].name, .density = all[i].choice.density, .velocity_error = errors[i]});
      }
      std::swap(outcome.candidates.front(), outcome.candidates[best]);
    }
    outcome.choice = std::move(all[best].choice);
    outcome.file = std::move(all[best].file);
    FillHeader(outcome.choice, outcome.file);
    if (!outcome.candidates.empty())
      outcome.file.dials["velocity_error"] = outcome.candidates.front().velocity_error;
    return true;
  }

  // [candidates] means over steps of the first and the last prompt, from states of the dense walk:
  // heads are not separable, and only the whole model tells how errors of layers add up. Empty:
  // interrupted.
  std::vector<double> VelocityErrors(const std::vector<Found>& all) {
    const int64_t first = std::max<int64_t>(1, options_.dense_steps), end = request_.config.steps;
    std::vector<int64_t> steps = {first, (first + end) / 2, end - 1};
    std::erase_if(steps, [&](int64_t step) { return step >= end; });
    steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
    std::vector<int64_t> prompts = {0};
    if (run_.Prompts() > 1) prompts.push_back(run_.Prompts() - 1);
    std::vector<double> errors(all.size());
    for (int64_t prompt : prompts) {
      run_.Say("comparing candidates");
      const std::vector<Waypoint> waypoints = run_.WalkDense(prompt, steps);
      if (!run_.Where().empty()) return {};
      for (const Waypoint& waypoint : waypoints) {
        for (size_t i = 0; i < all.size(); ++i) {
          errors[i] += run_.VelocityError(waypoint, std::make_unique<PatternMasks>(
                                                        run_.OnePrompt(),
                                                        std::make_shared<PatternFile>(all[i].file),
                                                        std::nullopt)) /
                       static_cast<double>(prompts.size() * steps.size());
        }
      }
    }
    return errors;
  }

  // Videos of the validation, and some of the calibration's own.
  void Judge(SearchOutcome& outcome) {
    if (options_.validation.empty()) return;
    std::vector<GenerateTask> tasks = options_.validation;
    outcome.calibration_videos = std::min(kCalibrationVideos, request_.tasks.size());
    tasks.insert(tasks.end(), request_.tasks.begin(),
                 request_.tasks.begin() + static_cast<int64_t>(outcome.calibration_videos));
    outcome.validation =
        Validate(request_, std::move(tasks), std::make_shared<PatternFile>(outcome.file),
                 options_.dense_steps, comm_, pool_, tools_);
    if (outcome.validation.interrupted) outcome.interrupted = "interrupted while validating";
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
  const SearchTools& tools_;
  CalibrationRun run_;
  std::vector<HeadOption> head_options_;
  HeadTrials trials_;
  ColumnTable columns_;
  ErrorTable table_, second_table_;  // of the first and the second look
  std::unique_ptr<SpeedModel> speed_;
  std::vector<float> sigmas_;                // of the table's steps
  std::shared_ptr<PatternFile> first_file_;  // what the second look goes on with
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
          .table = (LooksTwice(options) ? 4 : 2) *
                   ErrorTable::Bytes({.prompts = prompts,
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

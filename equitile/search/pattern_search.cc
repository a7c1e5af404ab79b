#include "equitile/search/pattern_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <numeric>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"
#include "equitile/search/choice_record.h"
#include "equitile/search/column_masses.h"
#include "equitile/search/later_stages.h"
#include "equitile/search/layer_trials.h"
#include "equitile/search/row_sample.h"
#include "equitile/search/search_costs.h"
#include "equitile/search/trial_source.h"
#include "equitile/search/velocity_judge.h"
#include "equitile/sparsity/pattern_masks.h"

namespace equitile {
namespace {

// Videos decide between at most so many candidates, and only those whose velocity is nearly as good
// as the best: what is far behind after single steps does not come back.
constexpr size_t kFinalists = 3;
constexpr double kNearlyAsGood = 1.25;

// Stages after the passes, as progress names them.
constexpr const char* kComparing = "comparing candidates";
constexpr const char* kChoosing = "choosing by videos";
constexpr const char* kWeighing = "weighing errors of layers";
constexpr const char* kValidating = "validating";
constexpr const char* kOtherSize = "validating another size";

CalibrationSetup SetupOf(const GenerateRequest& request, const SearchOptions& options) {
  CalibrationSetup setup{.dense_steps = options.dense_steps,
                         .identity = {},
                         .checkpoint = options.checkpoint,
                         .resumes = options.resumes};
  setup.identity["objective"] = ObjectiveName(options.choice.objective);
  // The second look goes on with what the first has chosen.
  if (LooksTwice(options)) {
    setup.identity["budget"] = fmt::format("{} of {}, {} ranges", options.choice.target_value,
                                           TargetName(options.choice.target),
                                           static_cast<int>(options.choice.step_ranges));
  }
  setup.identity["turns"] = fmt::format("{}", TurnsFor(options, std::ssize(request.tasks)));
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
                Communicator& comm, int threads, const SearchTools& tools,
                const PatternFound& found)
      : request_(request),
        recipe_(agreed),
        options_(options),
        model_(request.transformer),
        comm_(comm),
        pool_(threads),
        tools_(tools),
        found_(found),
        judge_(request, options.dense_steps, MassPrompts(options, std::ssize(request.tasks))),
        run_(request, agreed, SetupOf(request, options), comm, pool_, tools),
        head_options_(OptionsFor(options)),
        trials_({.grid = run_.token_grid(),
                 .block_tokens = run_.grid().block_tokens,
                 .heads = model_.heads,
                 .options = head_options_},
                pool_),
        columns_(MakeColumnTable(model_.layers, model_.heads, run_.grid().KvBlocks())),
        maps_(model_.layers, model_.heads, run_.grid().KvBlocks()),
        table_(TableShape(run_.Prompts(), run_.SparseSteps())),
        second_table_(TableShape(SecondPrompts(run_.Prompts()), run_.SparseSteps())) {}

  SearchOutcome Run() {
    SearchOutcome outcome;
    if (!run_.Begin(state_)) {
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
    ExpectStages();
    std::vector<CalibrationPass> passes = {MassesPass(), TrialsPass()};
    if (LooksTwice(options_)) passes.push_back(SecondPass());
    if (!run_.Run(passes, state_) || !Choose(outcome)) {
      outcome.interrupted = run_.Where();
      return outcome;
    }
    if (record_.search_seconds == 0) record_.search_seconds = run_.Seconds();
    outcome.seconds = record_.search_seconds;
    outcome.dense_seconds = run_.DenseSeconds();
    outcome.machine = run_.MeasuredMachine();
    outcome.maps = maps_;
    Judge(outcome);
    return outcome;
  }

 private:
  ErrorTableShape TableShape(int64_t prompts, int64_t steps) const {
    return {.prompts = prompts,
            .steps = steps,
            .layers = model_.layers,
            .heads = model_.heads,
            .options = std::ssize(head_options_),
            .turns = TurnsFor(options_, prompts)};
  }

  SourceState Parts() const {
    SourceState parts;
    PutColumns(columns_, parts);
    maps_.AddTo(parts);
    judge_.AddTo(parts);
    table_.AddTo(parts);
    if (LooksTwice(options_)) second_table_.AddTo(parts, "second.");
    record_.AddTo(parts);
    return parts;
  }
  void Restore(const SourceState& parts) {
    TakeColumns(parts, columns_);
    maps_.Restore(parts);
    judge_.Restore(parts);
    table_.Restore(parts);
    if (LooksTwice(options_)) second_table_.Restore(parts, "second.");
    record_.Restore(parts);
  }

  // --- The time that is left ---

  // In dense steps.
  double WeighedSteps() const {
    if (!WeighsErrors(options_) || judge_.Steps() == 0) return 0;
    return static_cast<double>(model_.layers *
                               judge_.Steps(EveryWeighedStep(request_, judge_.Steps())));
  }
  double VideoStepsOf(const GenerateRequest& videos, size_t tasks, int64_t files) const {
    return VideoSteps(videos, tasks, files, request_);
  }

  void ExpectStages() {
    const int64_t candidates = CandidateCount(options_);
    if (candidates > 1) {
      later_.Expect(kComparing, kSparsePart * static_cast<double>(candidates * judge_.Steps()));
      // One to three are near the best: then it is known how many.
      later_.Expect(kChoosing, VideoStepsOf(request_, options_.choosing.size(), 2));
    }
    later_.Expect(kWeighing, WeighedSteps());
    if (!options_.validation.empty()) {
      later_.Expect(kValidating,
                    VideoStepsOf(request_, JudgingTasks(request_, options_).size(), 1));
      if (options_.other_size.frames > 0) {
        later_.Expect(kOtherSize, VideoStepsOf(AtSize(request_, options_.other_size),
                                               OtherSizeTasks(options_).size(), 1));
      }
    }
    run_.ExpectLater(later_.Steps());
  }

  std::function<double(double part)> SecondsLeftIn(const char* stage) {
    return [this, stage](double part) {
      return later_.SecondsLeft(stage, part, comm_.Now(), run_.DenseStepSeconds());
    };
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
    pass.prompts = MassPrompts(options_, run_.Prompts());
    pass.source = [this](const SourceContext& context, int64_t) {
      return std::make_unique<ColumnMassSource>(context, options_.dense_steps, columns_, maps_);
    };
    pass.after_step = [this](int64_t prompt, const DenoiseStep& step) {
      judge_.Note(prompt, step);
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
    pass.records = RecordsIn(table_);
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
    pass.is_dense = false;
    pass.source = [this](const SourceContext& context, int64_t first) {
      if (first_file_ == nullptr) {
        const Calibration calibration = CalibrationOf(table_);
        first_file_ = std::make_shared<PatternFile>(
            ToPatternFile(calibration, ChoosePattern(calibration, options_.choice)));
      }
      return MakeTrials(context, first, second_table_, first_file_);
    };
    pass.records = RecordsIn(second_table_);
    pass.probe = [this](const SelfAttentionCall& call, const SourceContext& context) {
      Probe(call, context);
    };
    return pass;
  }

  std::function<bool(int64_t first, int64_t step)> RecordsIn(const ErrorTable& table) const {
    return [this, &table](int64_t first, int64_t step) {
      return table.Has(first, step - options_.dense_steps);
    };
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

  // All that a budget might have chosen, each different from the others and as fast as the first:
  // else the slowest would look best. An error holds by the table that a candidate was chosen from.
  std::vector<Found> FindAll() const {
    Found first = Find("first look", table_, options_.choice);
    if (!LooksTwice(options_)) return {std::move(first)};
    ChoiceDials dials = options_.choice;
    Found second = Find("second look", second_table_, dials);
    if (dials.target == TargetKind::kError) {
      const bool first_is_slower = first.choice.speedup <= second.choice.speedup;
      dials.target = TargetKind::kSpeedup;
      dials.target_value = (first_is_slower ? first : second).choice.speedup;
      if (first_is_slower) {
        second = Find(second.name, second_table_, dials);
      } else {
        first = Find(first.name, table_, dials);
      }
    }
    std::vector<Found> all;
    const auto add = [&](Found found) {
      for (const Found& other : all) {
        if (other.file.ranges == found.file.ranges) return;
      }
      if (Holds(found.choice)) all.push_back(std::move(found));
    };
    ChoiceDials one_range = dials;
    one_range.step_ranges = StepRangesKind::kOne;
    const bool is_open = options_.choice.step_ranges == StepRangesKind::kAuto;
    add(std::move(first));
    if (is_open) add(Find("first look, one range", table_, one_range));
    add(std::move(second));
    if (is_open) add(Find("second look, one range", second_table_, one_range));
    return all;
  }

  bool Holds(const PatternChoice& choice) const {
    constexpr double kRounding = 1 + 1e-9;
    return options_.choice.target != TargetKind::kError ||
           options_.choice.objective != Objective::kBudget ||
           choice.error <= kRounding * options_.choice.target_value;
  }

  static SearchCandidate CandidateOf(const Found& found) {
    return {.name = found.name,
            .density = found.choice.density,
            .speedup = found.choice.speedup,
            .velocity_error = 0,
            .psnr = std::nullopt};
  }

  // False: interrupted.
  bool Choose(SearchOutcome& outcome) {
    run_.Say("choosing");
    std::vector<Found> all = FindAll();
    if (all.size() > 1) {
      if (!RankByVelocity(all, outcome.candidates)) return false;
      if (!RankByVideos(all, outcome)) return false;
    }
    outcome.choice = std::move(all.front().choice);
    outcome.file = std::move(all.front().file);
    FillHeader(outcome.choice, outcome.file);
    NoteCandidates(outcome.candidates, outcome.file);
    return WeighErrors(outcome);
  }

  // False: interrupted.
  bool WeighErrors(SearchOutcome& outcome) {
    if (!WeighsErrors(options_) || judge_.Steps() == 0) return true;
    const LayerTrials trials{.doing = kWeighing,
                             .every = EveryWeighedStep(request_, judge_.Steps()),
                             .layer_done = [this] { run_.Save(state_); },
                             .seconds_left = SecondsLeftIn(kWeighing)};
    if (!TryLayers(trials, judge_, run_, record_.layers)) return false;
    outcome.layers = record_.layers;
    outcome.file.error_weights = {
        {.low = 0, .high = 1, .layers = ChooseErrorWeights(outcome.layers, kTriedErrors)}};
    return true;
  }

  static uint64_t KeyOf(const std::vector<PatternFile>& files) {
    Hasher hasher;
    for (const PatternFile& file : files) hasher.Add(std::string_view(PatternFileText(file)));
    return hasher.Digest();
  }

  // Best first; false: interrupted.
  bool RankByVelocity(std::vector<Found>& all, std::vector<SearchCandidate>& candidates) {
    std::vector<PatternFile> files;
    for (const Found& found : all) files.push_back(found.file);
    std::vector<double>& errors = record_.candidate_errors;
    const uint64_t key = KeyOf(files);
    if (std::exchange(record_.candidates_key, key) != key) errors.clear();
    const bool is_over = judge_.Run(
        {.doing = kComparing,
         .sources = std::ssize(all),
         .source = [&](int64_t i) -> std::unique_ptr<MaskSource> {
           return std::make_unique<PatternMasks>(
               run_.OnePrompt(), std::make_shared<PatternFile>(files[static_cast<size_t>(i)]),
               std::nullopt);
         },
         .begin = std::ssize(errors),
         .done =
             [&](int64_t, double error) {
               errors.push_back(error);
               run_.Save(state_);
             },
         .seconds_left = SecondsLeftIn(kComparing)},
        run_);
    if (!is_over) return false;
    std::vector<size_t> order(all.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return errors[a] < errors[b]; });
    std::vector<Found> ranked;
    for (size_t i : order) {
      candidates.push_back(CandidateOf(all[i]));
      candidates.back().velocity_error = errors[i];
      ranked.push_back(std::move(all[i]));
    }
    all = std::move(ranked);
    return true;
  }

  // The candidate with the best videos comes first; false: interrupted.
  bool RankByVideos(std::vector<Found>& all, SearchOutcome& outcome) {
    std::vector<SearchCandidate>& candidates = outcome.candidates;
    std::vector<PatternFile> finalists;
    for (size_t i = 0; i < std::min(kFinalists, all.size()); ++i) {
      if (candidates[i].velocity_error <= kNearlyAsGood * candidates[0].velocity_error)
        finalists.push_back(all[i].file);
    }
    if (options_.choosing.empty() || finalists.size() < 2) return true;
    later_.Expect(kChoosing,
                  VideoStepsOf(request_, options_.choosing.size(), std::ssize(finalists)));
    if (!MakeVideos(kChoosing, request_, options_.choosing, finalists, record_.choosing))
      return run_.Interrupted(fmt::format("while {}", kChoosing));
    const std::vector<ValidationResult>& results = record_.choosing.results;
    uint64_t best = 0;
    for (size_t i = 0; i < results.size() && comm_.rank() == 0; ++i) {
      candidates[i].psnr = results[i].MeanPsnr();
      if (*candidates[i].psnr > *candidates[best].psnr) best = i;
    }
    comm_.Broadcast(std::as_writable_bytes(std::span(&best, 1)), 0);
    KeepFrames(options_.choosing.front(), results[best], outcome);
    const auto to_front = [best](auto& list) {
      std::rotate(list.begin(), list.begin() + static_cast<int64_t>(best),
                  list.begin() + static_cast<int64_t>(best) + 1);
    };
    to_front(all);
    to_front(candidates);
    return true;
  }

  static void KeepFrames(const GenerateTask& task, const ValidationResult& result,
                         SearchOutcome& outcome) {
    outcome.frames = result.frames;
    outcome.frames_of = task.prompt;
  }

  // What each look, and each way to choose, has given.
  void NoteCandidates(const std::vector<SearchCandidate>& candidates, PatternFile& file) const {
    for (const SearchCandidate& candidate : candidates) {
      if (&candidate != candidates.data() && candidate.name != "first look") continue;
      const std::string whose = &candidate == candidates.data() ? "" : "first_look_";
      file.dials[whose + "velocity_error"] = candidate.velocity_error;
      if (candidate.psnr) file.dials[whose + "choice_psnr"] = *candidate.psnr;
    }
    if (!candidates.empty() && candidates.front().psnr)
      file.dials["choice_videos"] = static_cast<double>(options_.choosing.size());
  }

  // False: interrupted.
  bool MakeVideos(const char* stage, const GenerateRequest& request,
                  const std::vector<GenerateTask>& tasks, const std::vector<PatternFile>& files,
                  VideosMade& videos) {
    Hasher key;
    key.Add(KeyOf(files));
    for (const GenerateTask& task : tasks) key.Add(std::string_view(task.prompt)).Add(task.seed);
    for (int64_t side : {request.config.width, request.config.height, request.config.frames})
      key.Add(side);
    videos.Begin(key.Digest());
    const ValidationJob job{.request = request,
                            .tasks = tasks,
                            .dense_steps = options_.dense_steps,
                            .doing = stage,
                            .parts = run_.Parts(),
                            .task_done = [this] { run_.Save(state_); },
                            .seconds_left = SecondsLeftIn(stage)};
    return Validate(job, files, comm_, pool_, tools_, videos.results);
  }

  void Judge(SearchOutcome& outcome) {
    if (options_.validation.empty()) return;
    if (comm_.rank() == 0 && found_) found_(outcome);
    run_.Save(state_);
    const std::vector<PatternFile> files = {outcome.file};
    outcome.calibration_videos = static_cast<size_t>(OwnVideos(request_));
    if (!MakeVideos(kValidating, request_, JudgingTasks(request_, options_), files,
                    record_.validation)) {
      outcome.interrupted = "interrupted while validating";
      return;
    }
    outcome.validation = record_.validation.results.front();
    KeepFrames(options_.validation.front(), outcome.validation, outcome);
    if (options_.other_size.frames == 0) return;
    if (!MakeVideos(kOtherSize, AtSize(request_, options_.other_size), OtherSizeTasks(options_),
                    files, record_.other_size)) {
      outcome.interrupted = "interrupted while validating another size";
      return;
    }
    outcome.other_size = record_.other_size.results.front();
  }

  // Of all products of all steps, dense ones among them.
  double FlopReduction(const PatternFile& file) const {
    const GenerationConfig& config = request_.config;
    const WanFlops dense = CountWanFlops(model_, run_.grid().q_tokens, config.text_rows);
    const double sparse_part =
        static_cast<double>(run_.SparseSteps()) / static_cast<double>(config.steps);
    const double saved = sparse_part * (1 - file.density) * dense.self_attention;
    return dense.Total() / (dense.Total() - saved);
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
                  {"turns", static_cast<double>(table_.shape().turns)},
                  {"kernel_gflops", machine.kernel.front().gflops},
                  {"kernel_row_seconds", machine.kernel.front().row_seconds},
                  {"peak_gflops", machine.peak_gflops},
                  {"error", choice.error},
                  {"error_deviation", choice.error_deviation},
                  {"flop_reduction", FlopReduction(file)},
                  {"step_agreement", choice.step_agreement},
                  {"prompt_agreement", choice.prompt_agreement}};
    if (dials.objective == Objective::kBudget) {
      file.dials[fmt::format("target_{}", TargetName(dials.target))] = dials.target_value;
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
  const PatternFound& found_;
  const CalibrationState state_{.get = [this] { return Parts(); },
                                .set = [this](const SourceState& parts) { Restore(parts); }};
  VelocityJudge judge_;
  CalibrationRun run_;
  std::vector<HeadOption> head_options_;
  HeadTrials trials_;
  ColumnTable columns_;
  AttentionMaps maps_;
  ErrorTable table_, second_table_;  // of the first and the second look
  std::unique_ptr<SpeedModel> speed_;
  std::vector<float> sigmas_;                // of the table's steps
  std::shared_ptr<PatternFile> first_file_;  // what the second look goes on with
  ChoiceRecord record_;
  LaterStages later_;
};

}  // namespace

SearchOutcome RunSearch(const GenerateRequest& request, const Recipe& agreed,
                        const SearchOptions& options, Communicator& comm, int threads,
                        const SearchTools& tools, const PatternFound& found) {
  return PatternSearch(request, agreed, options, comm, threads, tools, found).Run();
}

}  // namespace equitile

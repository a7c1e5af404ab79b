#include "equitile/search/pattern_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"
#include "equitile/search/judge/choice_record.h"
#include "equitile/search/judge/layer_trials.h"
#include "equitile/search/judge/velocity_judge.h"
#include "equitile/search/pattern_candidates.h"
#include "equitile/search/pattern_looks.h"
#include "equitile/search/pattern_origin.h"
#include "equitile/search/search_costs.h"
#include "equitile/search/state/later_stages.h"
#include "equitile/sparsity/files/pattern_masks.h"

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
    setup.identity["budget"] = fmt::format(
        "{} of {}, {} ranges, for {} ranks, machine {}", options.choice.target_value,
        TargetName(options.choice.target), static_cast<int>(options.choice.step_ranges),
        options.for_ranks, request.recipe.Text("machine_hash"));
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
        looks_(request, options, run_, pool_) {}

  SearchOutcome Run() {
    SearchOutcome outcome;
    if (!run_.Begin(state_)) {
      outcome.interrupted = run_.Where();
      return outcome;
    }
    looks_.Begin();
    CheckReach(looks_.Speed());
    ExpectStages();
    const std::vector<CalibrationPass> passes = looks_.Passes(
        [this](int64_t prompt, const DenoiseStep& step) { judge_.Note(prompt, step); });
    if (!run_.Run(passes, state_) || !Choose(outcome)) {
      outcome.interrupted = run_.Where();
      return outcome;
    }
    if (record_.search_seconds == 0) record_.search_seconds = run_.Seconds();
    outcome.seconds = record_.search_seconds;
    outcome.dense_seconds = run_.DenseSeconds();
    outcome.machine = run_.MeasuredMachine();
    outcome.maps = looks_.maps();
    Judge(outcome);
    return outcome;
  }

 private:
  SourceState Parts() const {
    SourceState parts;
    looks_.AddTo(parts);
    judge_.AddTo(parts);
    record_.AddTo(parts);
    return parts;
  }
  void Restore(const SourceState& parts) {
    looks_.Restore(parts);
    judge_.Restore(parts);
    record_.Restore(parts);
  }

  // Here and below: what is left, in dense steps.
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

  static SearchCandidate CandidateOf(const PatternCandidate& found) {
    return {.name = found.name,
            .density = found.choice.density,
            .speedup = found.choice.speedup,
            .velocity_error = 0,
            .psnr = std::nullopt};
  }

  // False: interrupted.
  bool Choose(SearchOutcome& outcome) {
    run_.Say("choosing");
    std::vector<PatternCandidate> all =
        FindCandidates(looks_.First(), looks_.Second(), options_.choice);
    if (all.size() > 1) {
      if (!RankByVelocity(all, outcome.candidates)) return false;
      if (!RankByVideos(all, outcome)) return false;
    }
    outcome.choice = std::move(all.front().choice);
    outcome.file = std::move(all.front().file);
    FillHeader({.request = request_,
                .agreed = recipe_,
                .options = options_,
                .grid = run_.grid(),
                .machine = run_.MeasuredMachine()},
               outcome.choice, outcome.file);
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
  bool RankByVelocity(std::vector<PatternCandidate>& all,
                      std::vector<SearchCandidate>& candidates) {
    std::vector<PatternFile> files;
    for (const PatternCandidate& found : all) files.push_back(found.file);
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
    std::vector<PatternCandidate> ranked;
    for (size_t i : order) {
      candidates.push_back(CandidateOf(all[i]));
      candidates.back().velocity_error = errors[i];
      ranked.push_back(std::move(all[i]));
    }
    all = std::move(ranked);
    return true;
  }

  // The candidate with the best videos comes first; false: interrupted.
  bool RankByVideos(std::vector<PatternCandidate>& all, SearchOutcome& outcome) {
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
    // The same on every rank: it goes into the file, by which its videos are known again.
    std::vector<double> psnr(results.size());
    for (size_t i = 0; i < psnr.size() && comm_.rank() == 0; ++i) psnr[i] = results[i].MeanPsnr();
    comm_.Broadcast(std::as_writable_bytes(std::span(psnr)), 0);
    size_t best = 0;
    for (size_t i = 0; i < psnr.size(); ++i) {
      candidates[i].psnr = psnr[i];
      if (psnr[i] > psnr[best]) best = i;
    }
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
  PatternLooks looks_;
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

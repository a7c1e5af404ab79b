#include "equitile/search/search_options.h"

#include <algorithm>

#include "equitile/base/error.h"

namespace equitile {
namespace {

// Of the calibration's own, to compare the validation with.
constexpr int64_t kCalibrationVideos = 4;
constexpr int64_t kOtherSizeVideos = 2;

}  // namespace

bool IsPaper(const SearchOptions& options) { return options.choice.objective == Objective::kPaper; }

bool LooksTwice(const SearchOptions& options) {
  return options.choice.objective == Objective::kBudget && options.looks_twice;
}

bool WeighsErrors(const SearchOptions& options) {
  return options.choice.objective == Objective::kBudget;
}

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

// Where stripes lie is much the same for all prompts: a quarter of them tells it. Sparse-vDiT says
// nothing about that, and gets all.
int64_t MassPrompts(const SearchOptions& options, int64_t prompts) {
  return IsPaper(options) ? prompts : CeilDiv(prompts, 4);
}

// A second look costs as much per prompt as the first; half of them tell enough.
int64_t SecondPrompts(int64_t prompts) { return CeilDiv(prompts, 2); }

// Neighbouring steps are alike, prompts are not: each prompt is looked at in every second step.
int64_t TurnsFor(const SearchOptions& options, int64_t prompts) {
  const bool needs_each = IsPaper(options) || options.choice.step_ranges == StepRangesKind::kEach;
  return needs_each ? 1 : std::min<int64_t>(2, prompts);
}

// Every layer is tried in whole steps: in as many as are a quarter of the calibration's own, and in
// one at least.
int64_t EveryWeighedStep(const GenerateRequest& request, int64_t judged_steps) {
  const int64_t most =
      CeilDiv(std::ssize(request.tasks) * request.config.steps, 4 * request.transformer.layers);
  return CeilDiv(judged_steps, most);
}

int64_t CandidateCount(const SearchOptions& options) {
  if (!LooksTwice(options)) return 1;
  return options.choice.step_ranges == StepRangesKind::kAuto ? 4 : 2;
}

std::vector<GenerateTask> JudgingTasks(const GenerateRequest& request,
                                       const SearchOptions& options) {
  std::vector<GenerateTask> tasks = options.validation;
  tasks.insert(tasks.end(), request.tasks.begin(), request.tasks.begin() + OwnVideos(request));
  return tasks;
}

int64_t OwnVideos(const GenerateRequest& request) {
  return std::min(kCalibrationVideos, std::ssize(request.tasks));
}

std::vector<GenerateTask> OtherSizeTasks(const SearchOptions& options) {
  const std::vector<GenerateTask>& all = options.validation;
  return {all.begin(), all.begin() + std::min(kOtherSizeVideos, std::ssize(all))};
}

GenerateRequest AtSize(const GenerateRequest& request, const SearchOptions::Size& size) {
  GenerateRequest other = request;
  other.config.width = size.width;
  other.config.height = size.height;
  other.config.frames = size.frames;
  return other;
}

}  // namespace equitile

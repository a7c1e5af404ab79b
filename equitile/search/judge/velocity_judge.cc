#include "equitile/search/judge/velocity_judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "equitile/search/state/checkpoint_numbers.h"
#include "equitile/search/state/later_stages.h"

namespace equitile {
namespace {

// The sampler's first step has no state before it that a walk would show.
std::set<int64_t> StepsToLookAt(int64_t dense_steps, int64_t end) {
  const int64_t first = std::max<int64_t>(1, dense_steps);
  if (first >= end) return {};
  return {first, (first + end) / 2, end - 1};
}

std::string NameOf(size_t waypoint, const char* part) {
  return fmt::format("waypoint.{}.{}", waypoint, part);
}

}  // namespace

VelocityJudge::VelocityJudge(const GenerateRequest& request, int64_t dense_steps, int64_t prompts) {
  const GenerationConfig& config = request.config;
  latents_ = static_cast<size_t>(request.transformer.in_channels * config.LatentFrames() *
                                 config.LatentHeight() * config.LatentWidth());
  for (int64_t prompt : std::set<int64_t>{0, prompts - 1}) {
    for (int64_t step : StepsToLookAt(dense_steps, config.steps))
      waypoints_.push_back({.prompt = prompt, .step = step, .latents = {}, .velocity = {}});
  }
}

void VelocityJudge::Note(int64_t prompt, const DenoiseStep& step) {
  for (Waypoint& waypoint : waypoints_) {
    if (waypoint.prompt != prompt) continue;
    if (step.done == waypoint.step)
      waypoint.latents.assign(step.latents.begin(), step.latents.end());
    if (step.done == waypoint.step + 1)
      waypoint.velocity.assign(step.velocity.begin(), step.velocity.end());
  }
}

void VelocityJudge::AddTo(SourceState& parts) const {
  for (size_t i = 0; i < waypoints_.size(); ++i) {
    if (waypoints_[i].latents.empty()) continue;
    PutNumbers(waypoints_[i].latents, parts[NameOf(i, "latents")]);
    if (!waypoints_[i].velocity.empty())
      PutNumbers(waypoints_[i].velocity, parts[NameOf(i, "velocity")]);
  }
}

void VelocityJudge::Restore(const SourceState& parts) {
  for (size_t i = 0; i < waypoints_.size(); ++i) {
    const std::string latents = NameOf(i, "latents"), velocity = NameOf(i, "velocity");
    if (parts.contains(latents))
      waypoints_[i].latents = TakeNumbers<float>(parts, latents, latents_);
    if (parts.contains(velocity))
      waypoints_[i].velocity = TakeNumbers<float>(parts, velocity, latents_);
  }
}

bool VelocityJudge::Run(const Trial& trial, CalibrationRun& run) const {
  const int64_t steps = Steps(trial.every), all = trial.sources * steps;
  for (int64_t i = trial.begin; i < trial.sources; ++i) {
    double error = 0;
    for (int64_t step = 0; step < steps; ++step) {
      if (run.Stops("while " + trial.doing)) return false;
      const int64_t done = i * steps + step;
      const double left = trial.seconds_left(static_cast<double>(done) / static_cast<double>(all));
      run.Say(fmt::format("{}, step {}/{}{}", trial.doing, done + 1, all, EtaText(left)));
      const Waypoint& waypoint = waypoints_[static_cast<size_t>(step * trial.every)];
      error += run.VelocityError(waypoint, trial.source(i)) / static_cast<double>(steps);
    }
    trial.done(i, error);
  }
  return true;
}

int64_t VelocityJudge::Bytes() const {
  return 2 * std::ssize(waypoints_) * static_cast<int64_t>(latents_ * sizeof(float));
}

}  // namespace equitile

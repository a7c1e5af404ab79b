#include "equitile/search/state/later_stages.h"

#include <fmt/format.h>

#include <algorithm>

#include "equitile/base/duration.h"

namespace equitile {

void LaterStages::Expect(std::string_view name, double steps) {
  const auto known = std::ranges::find(stages_, name, &Stage::name);
  if (known != stages_.end()) {
    known->steps = steps;
  } else {
    stages_.push_back({std::string(name), steps});
  }
}

double LaterStages::Steps() const {
  double steps = 0;
  for (const Stage& stage : stages_) steps += stage.steps;
  return steps;
}

double LaterStages::SecondsLeft(std::string_view name, double done, double now,
                                double step_seconds) {
  const auto stage = std::ranges::find(stages_, name, &Stage::name);
  if (stage == stages_.end() || !(step_seconds > 0)) return 0;
  stages_.erase(stages_.begin(), stage);
  if (under_way_ != name) {
    under_way_ = name;
    begin_ = last_ = {done, now};
  }
  if (done > last_.done) last_ = {done, now};
  const bool has_pace = last_.done > begin_.done;
  const double whole = has_pace ? (last_.seconds - begin_.seconds) / (last_.done - begin_.done)
                                : stages_.front().steps * step_seconds;
  const double left = std::max(0.0, whole * (1 - last_.done) - (now - last_.seconds));
  return left + (Steps() - stages_.front().steps) * step_seconds;
}

std::string EtaText(double seconds_left) {
  return seconds_left > 0 ? fmt::format("  ETA {}", DurationText(seconds_left)) : "";
}

}  // namespace equitile

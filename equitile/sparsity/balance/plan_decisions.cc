#include "equitile/sparsity/balance/plan_decisions.h"

#include <fmt/format.h>

#include "equitile/base/checked_value.h"
#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr int64_t kMostCalls = 1 << 20;

// The part before `separator`, which is taken off.
std::string_view Next(std::string_view& text, std::string_view separator) {
  const size_t end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end == text.npos ? text.size() : end + separator.size());
  return part;
}

int64_t Number(std::string_view text, int64_t most) {
  return ParseNumber("recorded layouts:", text, Bounds<int64_t>{.min = 0, .max = most});
}

}  // namespace

int64_t PlanDecisions::Calls(int32_t layer) const {
  const auto found = layers_.find(layer);
  return found == layers_.end() ? 0 : std::ssize(found->second);
}

PlanDecision PlanDecisions::At(int32_t layer, int64_t call) const {
  return layers_.at(layer)[static_cast<size_t>(call)];
}

std::string PlanDecisions::Text() const {
  std::string text;
  for (const auto& [layer, decisions] : layers_) {
    text += fmt::format("{}{}:", text.empty() ? "" : "; ", layer);
    int64_t kept = 0;
    const auto end_run = [&] {
      if (kept > 0) text += fmt::format(" +{}", kept);
      kept = 0;
    };
    for (const PlanDecision& decision : decisions) {
      if (!decision) {
        ++kept;
        continue;
      }
      end_run();
      text += " " + decision->Text();
    }
    end_run();
  }
  return text;
}

PlanDecisions PlanDecisions::Parse(std::string_view text, int32_t ranks) {
  PlanDecisions decisions;
  while (!text.empty()) {
    std::string_view calls = Next(text, "; ");
    const auto layer = static_cast<int32_t>(Number(Next(calls, ": "), INT32_MAX));
    std::vector<PlanDecision>& of_layer = decisions.layers_[layer];
    while (!calls.empty()) {
      const std::string_view call = Next(calls, " ");
      if (!call.starts_with('+')) {
        of_layer.emplace_back(ParsePlanner(call, ranks));
        continue;
      }
      const int64_t kept = Number(call.substr(1), kMostCalls - std::ssize(of_layer));
      of_layer.resize(of_layer.size() + static_cast<size_t>(kept));
    }
  }
  return decisions;
}

}  // namespace equitile

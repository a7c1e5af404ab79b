#include "equitile/generate/recorded_layouts.h"

#include <string_view>

#include "equitile/base/hash.h"
#include "equitile/io/json_value.h"
#include "equitile/io/records/machine_file.h"

namespace equitile {
namespace {

std::string RunOf(const Recipe& recipe) {
  Hasher hasher;
  for (const auto& [name, value] : recipe.BitsIdentity())
    hasher.Add(std::string_view(name)).Add(std::string_view(value));
  return HashText(hasher.Digest());
}

}  // namespace

void RecordLayouts(const RecordedLayouts& layouts, Recipe& recipe) {
  const std::string decisions = layouts.decisions.Text();
  // Nothing takes the place of what another run had.
  const auto settle = [&](const char* key, const std::string& text) {
    if (!text.empty() || recipe.Has(key)) recipe.Settle(key, text);
  };
  settle("layouts", decisions.empty() ? "" : RunOf(recipe) + " " + decisions);
  settle("rates", layouts.rates ? MachineFileText(*layouts.rates) : "");
}

std::optional<RecordedLayouts> FindLayouts(const Recipe& recipe, int32_t ranks) {
  const std::string text = recipe.Text("layouts"), rates = recipe.Text("rates");
  const size_t space = text.find(' ');
  if (space == text.npos || text.substr(0, space) != RunOf(recipe)) return std::nullopt;
  RecordedLayouts found{.decisions = PlanDecisions::Parse(text.substr(space + 1), ranks),
                        .rates = std::nullopt};
  if (!rates.empty()) found.rates = ParseMachineFile(rates, "recorded rates");
  return found;
}

}  // namespace equitile

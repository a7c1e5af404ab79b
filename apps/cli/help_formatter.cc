#include "apps/cli/help_formatter.h"

#include <fmt/ranges.h>

#include <vector>

#include "apps/cli/wrapped_text.h"

namespace equitile {
namespace {

constexpr size_t kColumns = 80, kIndent = 2, kNames = 34;  // of the names, with their indent

// "-W,--width"; "--vae-tiling,--no-vae-tiling", of which CLI11 would add what the second stands
// for: {false}.
std::string Names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return fmt::format("{}", fmt::join(names, ","));
}

// Names, then what they mean, in the next line where they are long.
std::string Entry(const std::string& names, const std::string& meaning) {
  std::string text = std::string(kIndent, ' ') + names;
  const std::string margin(kNames, ' ');
  if (meaning.empty()) return text + "\n";
  text += text.size() < kNames ? std::string(kNames - text.size(), ' ') : "\n" + margin;
  bool is_first = true;
  for (const std::string& line : WrappedLines(meaning, kColumns - kNames)) {
    text += (is_first ? "" : margin) + line + "\n";
    is_first = false;
  }
  return text;
}

}  // namespace

HelpFormatter::HelpFormatter() {
  column_width(kNames);
  label("SUBCOMMAND", "COMMAND");
}

std::string HelpFormatter::make_description(const CLI::App* app) const {
  return Wrapped(app->get_description()) + "\n";
}

std::string HelpFormatter::make_subcommand(const CLI::App* sub) const {
  return Entry(sub->get_display_name(true), sub->get_description());
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  const std::string names = is_positional ? make_option_name(option, true) : Names(*option);
  return Entry(names + make_option_opts(option), option->get_description());
}

}  // namespace equitile

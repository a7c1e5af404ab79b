#include "equitile/generate/prompts.h"

#include <charconv>
#include <string_view>

#include "equitile/base/error.h"
#include "equitile/io/json_value.h"
#include "equitile/model/text/text_clean.h"

namespace equitile {
namespace {

PromptLine ParseLine(std::string_view line) {
  PromptLine parsed;
  const size_t tab = line.find('\t');
  if (tab != line.npos) {
    const std::string_view text = line.substr(0, tab);
    uint64_t seed = 0;
    const auto [stop, error] = std::from_chars(text.begin(), text.end(), seed);
    if (error != std::errc{} || stop != text.end() || seed > INT64_MAX) {
      throw InputError("'{}' before the tab is not a seed; must be a whole number, 0 to {}",
                       text.substr(0, 40), INT64_MAX);
    }
    parsed.seed = seed;
    line.remove_prefix(tab + 1);
    if (line.empty()) throw InputError("no prompt after the tab");
  }
  CleanPrompt(line);  // throws where it is not UTF-8
  parsed.prompt = line;
  return parsed;
}

}  // namespace

std::vector<PromptLine> ReadPrompts(const std::filesystem::path& path) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  const std::string text = ReadTextFile(path);
  std::string_view rest = text;
  if (rest.starts_with(kByteOrderMark)) rest.remove_prefix(kByteOrderMark.size());
  std::vector<PromptLine> lines;
  for (size_t number = 1; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const size_t begin = line.find_first_not_of(" \t");
    if (begin == line.npos || line[begin] == '#') continue;
    try {
      lines.push_back(ParseLine(line));
    } catch (const InputError& error) {
      throw InputError("{}, line {}: {}", path.string(), number, error.what());
    }
  }
  if (lines.empty()) throw InputError("{}: holds no prompt", path.string());
  return lines;
}

}  // namespace equitile

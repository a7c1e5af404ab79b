#include "equitile/generate/vocabulary.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "equitile/io/json_value.h"

namespace equitile {
namespace {

// Bytes above 127 are letters of some alphabet.
bool IsLetter(unsigned char c) { return std::isalpha(c) != 0 || c >= 0x80; }

std::vector<std::string> WordsOf(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  for (unsigned char c : text) {
    if (IsLetter(c) && !inside) words.emplace_back();
    inside = IsLetter(c);
    if (inside) words.back() += static_cast<char>(c < 0x80 ? std::tolower(c) : c);
  }
  return words;
}

}  // namespace

std::optional<Vocabulary> Vocabulary::Of(const std::filesystem::path& model) {
  const std::filesystem::path path = model / "vocabulary.txt";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;
  return Vocabulary(ReadTextFile(path));
}

Vocabulary::Vocabulary(std::string_view text) { words_ = WordsOf(text); }

std::vector<std::string> Vocabulary::Unknown(std::span<const std::string> prompts) const {
  const auto holds = [](const std::vector<std::string>& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  std::vector<std::string> unknown;
  for (const std::string& prompt : prompts) {
    for (std::string& word : WordsOf(prompt)) {
      if (holds(words_, word) || holds(unknown, word)) continue;
      unknown.push_back(std::move(word));
    }
  }
  return unknown;
}

std::string Vocabulary::Remark(std::span<const std::string> prompts) const {
  const std::vector<std::string> unknown = Unknown(prompts);
  if (unknown.empty()) return "";
  constexpr size_t kNamed = 8, kShown = 20;
  const auto named = std::span(unknown).first(std::min(kNamed, unknown.size()));
  const auto shown = std::span(words_).first(std::min(kShown, words_.size()));
  std::string remark =
      fmt::format("this model was not taught '{}'{}; its words are {}", fmt::join(named, "', '"),
                  unknown.size() > kNamed ? " and others" : "", fmt::join(shown, " "));
  if (shown.size() < words_.size()) {
    remark += fmt::format(" and {} more, in its vocabulary.txt", words_.size() - shown.size());
  }
  return remark;
}

}  // namespace equitile

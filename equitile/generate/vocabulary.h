// The words that a small model was taught, where its folder lists them: a prompt with others gets a
// warning instead of a riddle.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace equitile {

class Vocabulary {
 public:
  // Of vocabulary.txt in a model's folder, words apart by spaces and lines, the most useful ones
  // first; nothing where there is none.
  static std::optional<Vocabulary> Of(const std::filesystem::path& model);

  explicit Vocabulary(std::string_view text);

  // Words of the prompts that are not known, each once, in the order in which they come. A word is
  // letters, in any case.
  std::vector<std::string> Unknown(std::span<const std::string> prompts) const;

  // One line that names them and the first known ones; "": all are known.
  std::string Remark(std::span<const std::string> prompts) const;

 private:
  std::vector<std::string> words_;  // as the file has them
};

}  // namespace equitile

#include "apps/compare/compare_side.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "apps/cli/command_line.h"
#include "apps/cli/flags.h"
#include "apps/cli/shell_words.h"
#include "apps/cli/table.h"
#include "apps/generate/generate_flags.h"
#include "equitile/base/error.h"
#include "equitile/generate/memory_estimate.h"

namespace equitile {
namespace {

// Flags of generate that make no sense here, told from flags that do not exist.
void RefuseOtherFlags(const CLI::App& known, const std::vector<std::string>& words) {
  GenerateFlags unused;
  CLI::App all;
  AddGenerateFlags(all, unused);
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    if (name.starts_with("-") && all.get_option_no_throw(name) != nullptr &&
        known.get_option_no_throw(name) == nullptr) {
      throw InputError("{}: not in a comparison, which has prompts of its own and writes no video",
                       name);
    }
  }
}

GenerateFlags ParseSide(const std::string& text) {
  GenerateFlags flags;
  CLI::App root("", "equitile");
  CLI::App& generate = *root.add_subcommand("generate");
  generate.set_help_flag("");
  AddMakingFlags(generate, flags);
  std::vector<std::string> words = SplitWords(text);
  RefuseOtherFlags(generate, words);
  words.insert(words.begin(), "generate");
  ParseArguments(root, std::move(words));
  CompleteFlags(generate, flags);
  if (!flags.recipe.IsSettled("seed")) {
    throw InputError("--seed {}: random seeds give videos that cannot be compared",
                     flags.recipe.Text("seed"));
  }
  if (flags.ranks.ranks && UnderLauncher()) {
    throw InputError("--ranks {}: under mpirun its processes are the ranks; leave it out",
                     *flags.ranks.ranks);
  }
  return flags;
}

// Lines of the prompts' file that have seeds of their own keep them.
void TellOfUnusedSeed(const CompareSide& side) {
  const Recipe& recipe = side.request.recipe;
  if (recipe.SourceOf("seed") != Recipe::Source::kGiven) return;
  auto wanted = static_cast<uint64_t>(recipe.Integer("seed"));
  const auto is_own = [&](const GenerateTask& task) { return task.seed != wanted++; };
  if (!std::ranges::any_of(side.request.tasks, is_own)) return;
  Remark(fmt::format("--{}: --seed {} does not count where lines have seeds of their own",
                     side.name, recipe.Integer("seed")));
}

CompareSide MakeSide(const std::string& name, const std::string& text, const std::string& prompts) {
  try {
    GenerateFlags flags = ParseSide(text);
    flags.options.prompts = prompts;
    flags.options.files = VideoFiles::kNone;
    CompareSide side{0, name, text, RequestOf(flags), flags.ranks, WeightType::kF32};
    side.weights = ChooseWeights(side.request, Remark);
    TellOfUnusedSeed(side);
    return side;
  } catch (const InputError& error) {
    throw InputError("--{}: {}", name, error.what());
  }
}

void CheckSameFrames(const CompareSide& side_a, const CompareSide& side_b) {
  const GenerationConfig &a = side_a.request.config, &b = side_b.request.config;
  if (a.frames == b.frames && a.width == b.width && a.height == b.height) return;
  throw InputError(
      "--a makes {} frames of {}x{}, --{} {} frames of {}x{}; they must be the same to be compared",
      a.frames, a.width, a.height, side_b.name, b.frames, b.width, b.height);
}

bool SharesWeights(const CompareSide& a, const CompareSide& b) {
  std::error_code ignored;
  return a.weights == b.weights &&
         std::filesystem::equivalent(a.request.folder.root(), b.request.folder.root(), ignored);
}

}  // namespace

std::vector<CompareSide> MakeSides(const std::string& prompts, const std::string& a,
                                   const std::vector<std::string>& b) {
  std::vector<CompareSide> sides = {MakeSide("a", a, prompts)};
  for (const std::string& flags : b) {
    const size_t index = sides.size();
    sides.push_back(MakeSide(b.size() == 1 ? "b" : fmt::format("b{}", index), flags, prompts));
    sides.back().index = index;
    CheckSameFrames(sides[0], sides.back());
  }
  return sides;
}

size_t OwnerOfWeights(const std::vector<CompareSide>& sides, size_t index) {
  size_t owner = 0;
  while (owner < index && !SharesWeights(sides[owner], sides[index])) ++owner;
  return owner;
}

}  // namespace equitile

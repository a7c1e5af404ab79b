#include "equitile/generate/compute_choice.h"

#include <fmt/format.h>

#include <utility>

#include "equitile/base/error.h"

namespace equitile {
namespace {

struct Part {
  std::string_view name;
  Compute ComputeChoice::*member;
};

constexpr Part kParts[] = {{"attention", &ComputeChoice::attention},
                           {"linear", &ComputeChoice::linear},
                           {"vae", &ComputeChoice::vae},
                           {"text", &ComputeChoice::text}};

constexpr const char* kKnown =
    "use f32, int16 or int8, or parts like attention=int8,linear=int16,text=f32";

Compute ParseWord(std::string_view text, std::string_view word) {
  for (Compute compute : {Compute::kF32, Compute::kInt16, Compute::kInt8}) {
    if (ComputeName(compute) == word) return compute;
  }
  throw InputError("--compute {}: '{}' is not known; {}", text, word, kKnown);
}

ComputeChoice OfWord(Compute compute) {
  ComputeChoice choice;
  choice.attention = choice.linear = compute;
  choice.vae = choice.text = compute == Compute::kInt8 ? Compute::kInt16 : compute;
  return choice;
}

const Part& PartNamed(std::string_view text, std::string_view name) {
  for (const Part& part : kParts) {
    if (part.name == name) return part;
  }
  throw InputError("--compute {}: no part '{}'; {}", text, name, kKnown);
}

std::pair<std::string_view, std::string_view> CutAt(std::string_view text, char mark) {
  const size_t at = text.find(mark);
  if (at == text.npos) return {text, {}};
  return {text.substr(0, at), text.substr(at + 1)};
}

void CheckPossible(std::string_view text, const ComputeChoice& choice) {
  if (choice.vae == Compute::kInt8)
    throw InputError("--compute {}: the VAE computes in f32 or int16", text);
}

}  // namespace

ComputeChoice ParseComputeChoice(std::string_view text) {
  ComputeChoice choice;
  std::string_view rest = text;
  bool named[std::size(kParts)] = {};
  for (bool is_first = true; is_first || !rest.empty(); is_first = false) {
    const auto [item, after] = CutAt(rest, ',');
    rest = after;
    const auto [name, value] = CutAt(item, '=');
    if (item.find('=') == item.npos) {
      if (!is_first) throw InputError("--compute {}: '{}' must come first; {}", text, item, kKnown);
      choice = OfWord(ParseWord(text, item));
      continue;
    }
    const Part& part = PartNamed(text, name);
    if (std::exchange(named[&part - kParts], true))
      throw InputError("--compute {}: '{}' comes twice", text, name);
    choice.*part.member = ParseWord(text, value);
  }
  CheckPossible(text, choice);
  return choice;
}

std::string ComputeChoiceText(const ComputeChoice& choice) {
  if (choice == ComputeChoice()) return "f32";
  std::string text;
  for (const Part& part : kParts) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", part.name,
                        ComputeName(choice.*part.member));
  }
  return text;
}

FieldType ComputeType() {
  FieldType type = Text("WHAT");
  type.check = [](std::string_view, std::string_view text) {
    return ComputeChoiceText(ParseComputeChoice(text));
  };
  return type;
}

ComputeChoice ComputeOf(const Recipe& recipe) { return ParseComputeChoice(recipe.Text("compute")); }

WeightType IntegerWeights(Compute compute) { return ParseWeightType(ComputeName(compute)); }

void CheckComputeFits(const Recipe& recipe) {
  const ComputeChoice choice = ComputeOf(recipe);
  const auto is_given = [&](const char* key) {
    return recipe.SourceOf(key) == Recipe::Source::kGiven && recipe.IsSettled(key);
  };
  if (is_given("weights")) {
    const WeightType weights = ParseWeightType(recipe.Text("weights"));
    if (equitile::ComputeOf(weights) != choice.linear) {
      throw InputError(
          "--weights {}: linear layers compute in {}, whose weights are {}; leave --weights away",
          recipe.Text("weights"), ComputeName(choice.linear),
          choice.linear == Compute::kF32 ? "f32 or bf16" : ComputeName(choice.linear));
    }
  }
  if (is_given("wire") && choice.attention != Compute::kF32 &&
      recipe.Text("wire") != ComputeName(choice.attention)) {
    throw InputError("--wire {}: attention computes in {}, and so tokens travel; leave --wire away",
                     recipe.Text("wire"), ComputeName(choice.attention));
  }
}

}  // namespace equitile

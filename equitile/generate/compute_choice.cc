#include "equitile/generate/compute_choice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

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

constexpr const char* kNoLayers = "none";
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

void CheckPossible(std::string_view text, const ComputeChoice& choice) {
  if (choice.vae == Compute::kInt8)
    throw InputError("--compute {}: the VAE computes in f32 or int16", text);
}

}  // namespace

ComputeChoice ParseComputeChoice(std::string_view text, ComputeChoice under) {
  ComputeChoice choice = under;
  std::vector<std::string_view> named;
  for (size_t begin = 0, end = 0; end < text.size() || begin == 0; begin = end + 1) {
    end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    const size_t equals = item.find('=');
    if (item.empty() && !text.empty())
      throw InputError("--compute {}: a comma without a part beside it; {}", text, kKnown);
    if (equals == item.npos) {
      if (begin > 0) throw InputError("--compute {}: '{}' must come first; {}", text, item, kKnown);
      choice = OfWord(ParseWord(text, item));
      continue;
    }
    const Part& part = PartNamed(text, item.substr(0, equals));
    if (std::ranges::count(named, part.name) > 0)
      throw InputError("--compute {}: '{}' comes twice", text, part.name);
    named.push_back(part.name);
    choice.*part.member = ParseWord(text, item.substr(equals + 1));
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
    ParseComputeChoice(text);
    return std::string(text);
  };
  type.over = [](std::string_view text, std::string_view under) {
    return ComputeChoiceText(ParseComputeChoice(text, ParseComputeChoice(under)));
  };
  return type;
}

ComputeChoice ComputeOf(const Recipe& recipe) { return ParseComputeChoice(recipe.Text("compute")); }

WeightType IntegerWeights(Compute compute) { return ParseWeightType(ComputeName(compute)); }

WanWeightTypes WeightTypesOf(const Recipe& recipe, WeightType weights) {
  WanWeightTypes types(weights);
  const std::string text = recipe.Text("int16_layers");
  if (weights != WeightType::kInt8 || text == kNoLayers) return types;
  for (size_t begin = 0, end = 0; end < text.size(); begin = end + 1) {
    end = std::min(text.find(',', begin), text.size());
    types.int16.push_back(text.substr(begin, end - begin));
  }
  return types;
}

std::string Int16LayersText(const std::vector<std::string>& names) {
  return names.empty() ? kNoLayers : fmt::format("{}", fmt::join(names, ","));
}

std::string StayInt16Text(const Recipe& recipe, const WanConfig& model) {
  if (ComputeOf(recipe).linear != Compute::kInt8) return "";
  const std::vector<std::string> names = WeightTypesOf(recipe, WeightType::kInt8).int16;
  if (names.empty()) return "";
  return fmt::format("{} of {} layers stay int16: {}", names.size(),
                     WanWeights::BlockMatrices(model), fmt::join(names, ", "));
}

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
  const std::string wire = recipe.Text("wire");
  if (!is_given("wire") || wire == ComputeName(choice.attention)) return;
  if (choice.attention != Compute::kF32) {
    throw InputError("--wire {}: attention computes in {}, and so tokens travel; leave --wire away",
                     wire, ComputeName(choice.attention));
  }
  if (wire != DTypeName(DType::kBF16))
    throw InputError("--wire {}: attention computes in f32; use f32 or bf16", wire);
}

void SettleWire(Recipe& recipe) {
  const Compute attention = ComputeOf(recipe).attention;
  if (attention != Compute::kF32) return recipe.Settle("wire", ComputeName(attention));
  const bool is_bf16 = recipe.Text("wire") == DTypeName(DType::kBF16);
  recipe.Settle("wire", DTypeName(is_bf16 ? DType::kBF16 : DType::kF32));
}

DType WireOf(const Recipe& recipe) {
  const std::string wire = recipe.Text("wire");
  return wire == DTypeName(DType::kBF16) ? DType::kBF16 : DType::kF32;
}

}  // namespace equitile

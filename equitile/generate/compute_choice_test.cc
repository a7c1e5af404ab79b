#include "equitile/generate/compute_choice.h"

#include <gtest/gtest.h>

#include <string>

#include "equitile/base/error.h"
#include "tests/refusal.h"

namespace equitile {
namespace {

std::string RefusalOf(std::string_view text) {
  return Refusal([&] { ParseComputeChoice(text); });
}

TEST(ComputeChoice, OneWayToWriteIt) {
  for (const auto& [text, wanted] :
       {std::pair("f32", "f32"), std::pair("linear=f32", "f32"),
        std::pair("linear=int16", "attention=f32,linear=int16,vae=f32,text=f32"),
        std::pair("text=int8,linear=int16", "attention=f32,linear=int16,vae=f32,text=int8"),
        std::pair("int8", "attention=int8,linear=int8,vae=int16,text=int16"),
        std::pair("int16,attention=f32", "attention=f32,linear=int16,vae=int16,text=int16"),
        std::pair("int8,attention=f32", "attention=f32,linear=int8,vae=int16,text=int16"),
        std::pair("int8,attention=f32,text=f32", "attention=f32,linear=int8,vae=int16,text=f32"),
        std::pair("vae=int16", "attention=f32,linear=f32,vae=int16,text=f32"),
        std::pair("int8,vae=f32", "attention=int8,linear=int8,vae=f32,text=int16")}) {
    const ComputeChoice choice = ParseComputeChoice(text);
    EXPECT_EQ(ComputeChoiceText(choice), wanted);
    EXPECT_EQ(ParseComputeChoice(ComputeChoiceText(choice)), choice);
  }
}

TEST(ComputeChoice, RefusesInOneLineWhatItDoesNotKnow) {
  for (const auto& [text, part] :
       {std::pair("", "'' is not known"), std::pair("int4", "'int4' is not known"),
        std::pair("linear=", "'' is not known"), std::pair("linear=bf16", "'bf16' is not known"),
        std::pair("lineal=int8", "no part 'lineal'"), std::pair("=int8", "no part ''"),
        std::pair("linear=int8,int16", "must come first"),
        std::pair("int8,text=f32,", "a comma without a part beside it"),
        std::pair("int8,,text=f32", "a comma without a part beside it"),
        std::pair(",int8", "a comma without a part beside it"),
        std::pair("linear=int8,linear=int16", "comes twice"),
        std::pair("vae=int8", "the VAE computes in f32 or int16")}) {
    EXPECT_NE(RefusalOf(text).find(part), std::string::npos) << text << ": " << RefusalOf(text);
    EXPECT_EQ(RefusalOf(text).find('\n'), std::string::npos);
  }
}

TEST(ComputeChoice, PartsLieOverWhatWasSaidMoreWeakly) {
  using Source = Recipe::Source;
  Recipe recipe;
  const auto said = [&] { return recipe.Text("compute"); };
  recipe.Set("compute", "linear=int16", Source::kGiven);
  EXPECT_EQ(said(), "attention=f32,linear=int16,vae=f32,text=f32");
  recipe.Set("compute", "int8", Source::kPreset);
  EXPECT_EQ(said(), "attention=int8,linear=int16,vae=int16,text=int16");
  recipe.Set("compute", "int16", Source::kRecord);  // under a preset that says all
  EXPECT_EQ(said(), "attention=int8,linear=int16,vae=int16,text=int16");
  EXPECT_EQ(recipe.SourceOf("compute"), Source::kGiven);
  recipe.Set("compute", "f32", Source::kGiven);
  EXPECT_EQ(said(), "f32");
}

TEST(ComputeChoice, TheWireIsWhatTravels) {
  const auto settled = [](const char* compute, const char* wire, Recipe::Source source) {
    Recipe recipe;
    recipe.Set("compute", compute, Recipe::Source::kGiven);
    recipe.Set("wire", wire, source);
    CheckComputeFits(recipe);
    SettleWire(recipe);
    return recipe.Text("wire");
  };
  constexpr auto kRecord = Recipe::Source::kRecord, kGiven = Recipe::Source::kGiven;
  EXPECT_EQ(settled("int8", "bf16", kRecord), "int8");
  EXPECT_EQ(settled("int16", "int16", kGiven), "int16");
  EXPECT_EQ(settled("f32", "int16", kRecord), "f32");
  EXPECT_EQ(settled("linear=int8", "bf16", kGiven), "bf16");
  EXPECT_THROW(settled("int8", "bf16", kGiven), InputError);
  EXPECT_THROW(settled("int8", "f32", kGiven), InputError);
  EXPECT_THROW(settled("linear=int8", "int8", kGiven), InputError);
}

TEST(ComputeChoice, WeightsMustBeThoseOfTheArithmetic) {
  const auto check = [](const char* compute, const char* weights) {
    Recipe recipe;
    recipe.Set("compute", compute, Recipe::Source::kGiven);
    recipe.Set("weights", weights, Recipe::Source::kGiven);
    CheckComputeFits(recipe);
  };
  for (const auto& [compute, weights] :
       {std::pair("f32", "auto"), std::pair("f32", "bf16"), std::pair("linear=int16", "auto"),
        std::pair("linear=int16", "int16"), std::pair("linear=int8", "int8"),
        std::pair("text=int16", "bf16")}) {
    EXPECT_NO_THROW(check(compute, weights)) << compute << " " << weights;
  }
  for (const auto& [compute, weights] :
       {std::pair("f32", "int16"), std::pair("linear=int16", "bf16"),
        std::pair("linear=int16", "f32"), std::pair("linear=int8", "int16")}) {
    EXPECT_THROW(check(compute, weights), InputError) << compute << " " << weights;
  }
}

}  // namespace
}  // namespace equitile

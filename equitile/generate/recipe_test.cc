#include "equitile/generate/recipe.h"

#include <gtest/gtest.h>

#include <set>

#include "equitile/generate/sidecar.h"
#include "tests/refusal.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

using Source = Recipe::Source;

// As a run on two ranks has it before its first step.
Recipe Settled() {
  Recipe recipe;
  recipe.Set("prompt", "a star", Source::kGiven);
  recipe.Set("output", "a.mp4", Source::kGiven);
  recipe.Set("model", "models/wan", Source::kGiven);
  recipe.SetModelDefaults({});
  recipe.Settle("model_fingerprint", "0123456789abcdef");
  recipe.Settle("weights", "bf16");
  recipe.Settle("ranks", "2");
  recipe.Settle("target", "avx2");
  return recipe;
}

TEST(RecipeFields, NamesFlagsAndKeysAreTheirOwn) {
  std::set<std::string> names, keys, flags;
  for (const RecipeField& field : RecipeFields()) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    EXPECT_TRUE(keys.insert(field.key).second) << field.key;
    if (field.flags.empty()) continue;
    EXPECT_TRUE(flags.insert(field.LongFlag()).second) << field.flags;
    EXPECT_FALSE(field.help.empty()) << field.key;
  }
  for (const RecipeField& field : RecipeFields()) {
    if (!field.describes.empty()) EXPECT_TRUE(keys.contains(field.describes)) << field.key;
    if (field.initial) EXPECT_EQ(field.type.Checked(field.key, *field.initial), *field.initial);
  }
}

TEST(Recipe, TheStrongerSourceCounts) {
  Recipe recipe;
  EXPECT_EQ(recipe.Text("seed"), "42");
  recipe.Set("steps", "30", Source::kGiven);
  GenerationConfig defaults;
  defaults.steps = 50;
  defaults.guidance = 2.5;
  recipe.SetModelDefaults(defaults);
  recipe.Set("seed", "7", Source::kRecord);
  recipe.Set("steps", "20", Source::kRecord);
  recipe.Set("cfg_scale", "3", Source::kRecord);
  EXPECT_EQ(recipe.Integer("seed"), 7);
  EXPECT_EQ(recipe.Integer("steps"), 30);
  EXPECT_EQ(recipe.Number("cfg_scale"), 3);
  EXPECT_EQ(recipe.Config().steps, 30);
  EXPECT_EQ(recipe.Config().guidance, 3);
  EXPECT_EQ(recipe.Config().width, GenerationConfig().width);
}

TEST(Recipe, ConfigComesBackAsItWas) {
  GenerationConfig config;
  config.width = 48;
  config.guidance = 0.1 + 0.2;
  config.flow_shift = 1e-3;
  config.negative_prompt = "x \"y\"\n";
  config.sampler = SamplerKind::kEuler;
  config.rng = NoiseKind::kPhilox;
  Recipe recipe;
  recipe.SetModelDefaults(config);
  const GenerationConfig back = recipe.Config();
  EXPECT_EQ(back.width, 48);
  EXPECT_EQ(back.guidance, config.guidance);
  EXPECT_EQ(back.flow_shift, config.flow_shift);
  EXPECT_EQ(back.negative_prompt, config.negative_prompt);
  EXPECT_EQ(back.sampler, config.sampler);
  EXPECT_EQ(back.rng, config.rng);
}

TEST(Recipe, EqualValuesAreEqualTexts) {
  Recipe recipe;
  recipe.Set("cfg_scale", "2.50", Source::kGiven);
  recipe.Set("steps", "007", Source::kGiven);
  EXPECT_EQ(recipe.Text("cfg_scale"), "2.5");
  EXPECT_EQ(recipe.Text("steps"), "7");
  EXPECT_EQ(Refusal([&] { recipe.Set("steps", "0", Source::kGiven, "--steps"); }),
            "--steps 0: must be a whole number from 1 to 1000");
  EXPECT_FALSE(Refusal([&] { recipe.Set("planner", "best", Source::kGiven); }).empty());
}

TEST(Recipe, WhatIsRecordedMakesTheSameRecipe) {
  const TempFolder folder;
  for (const char* planner : {"auto", "ring", "usp:1x2"}) {
    Recipe made = Settled();
    made.Set("planner", planner, Source::kGiven);
    made.Set("cfg_scale", "1", Source::kGiven);  // one pass: ring splits its rows
    folder.Write("a.json", SidecarJson(made, {{"ranks", 2}}).dump());
    Recipe again;
    ReadSidecar(folder / "a.json", again);
    // As the run would find it.
    again.SetModelDefaults({});
    again.Find("model_fingerprint", "0123456789abcdef");
    again.Settle("ranks", "2");
    EXPECT_EQ(again.BitsIdentity(), made.BitsIdentity()) << planner;
    EXPECT_EQ(again.Text("model"), std::filesystem::absolute("models/wan").string());
    EXPECT_EQ(again.Text("output"), "a.mp4");
  }
}

TEST(Recipe, LayoutsThatMakeNoDifferenceAreLeftOpen) {
  struct Case {
    const char *planner, *ranks, *wire, *guidance;
    bool matters;
  };
  for (const Case& test :
       {Case{"auto", "2", "f32", "1", false}, Case{"ring", "2", "f32", "1", true},
        Case{"ring", "1", "f32", "1", false},
        Case{"ring", "2", "f32", "5", false},  // a pass for each
        Case{"usp:2x1", "2", "f32", "1", false}, Case{"usp:1x2", "2", "f32", "1", true},
        Case{"ulysses", "2", "bf16", "1", true}, Case{"ulysses", "1", "bf16", "1", false}}) {
    Recipe recipe = Settled();
    recipe.Settle("planner", test.planner);
    recipe.Settle("ranks", test.ranks);
    recipe.Settle("wire", test.wire);
    recipe.Settle("cfg_scale", test.guidance);
    const Json recorded = SidecarJson(recipe, {})["parameters"];
    for (const char* key : {"planner", "ranks", "wire", "reproducible"}) {
      EXPECT_EQ(recorded[key].is_null(), !test.matters) << test.planner << test.ranks << key;
    }
    EXPECT_EQ(recipe.BitsIdentity().contains("layout"), test.matters) << test.planner;
    EXPECT_EQ(recipe.Identity()["layout"], test.planner);  // ranks agree on it all the same
  }
}

TEST(Recipe, FilesInOtherPlacesAreTheSame) {
  Recipe a = Settled(), b = Settled();
  a.Settle("attention", "mask:/here/m.npy");
  b.Settle("attention", "mask:/there/m.npy");
  b.Settle("model", "/elsewhere");
  EXPECT_EQ(a.Identity(), b.Identity());
  b.Settle("mask_hash", "fedcba9876543210");
  EXPECT_NE(a.Identity(), b.Identity());
  EXPECT_NE(a.BitsIdentity(), b.BitsIdentity());
  b = a;
  b.Settle("machine", "m.json");
  EXPECT_NE(a.Identity(), b.Identity());
  EXPECT_EQ(a.BitsIdentity(), b.BitsIdentity());
}

TEST(Recipe, WhatANamedFileHoldsIsCheckedWhereTheRecordNamesIt) {
  Recipe recipe;
  recipe.Set("attention", "mask:m.npy", Source::kRecord);
  recipe.Set("mask_hash", "0123456789abcdef", Source::kRecord);
  EXPECT_NO_THROW(Recipe(recipe).Find("mask_hash", "0123456789abcdef"));
  EXPECT_NE(Refusal([&] {
              Recipe(recipe).Find("mask_hash", "fedcba9876543210");
            }).find("another mask than mask:m.npy has now"),
            std::string::npos);
  recipe.Set("attention", "mask:n.npy", Source::kGiven);
  recipe.Find("mask_hash", "fedcba9876543210");
  EXPECT_EQ(recipe.Text("mask_hash"), "fedcba9876543210");
}

// What 0.1.0 wrote: no target, no ranks among the parameters.
constexpr const char* kOldSidecar = R"({"equitile": "0.1.0",
  "parameters": {"prompt": "a star", "negative_prompt": "", "seed": 7, "rng": "torch", "width": 64,
    "height": 48, "video_frames": 5, "fps": 16, "steps": 2, "cfg_scale": 5.0, "flow_shift": 3.0,
    "sampler": "unipc", "tokenizer": "json", "text_rows": 512, "attention": "dense",
    "mask_hash": null, "weights": "f32", "vae_tiling": false, "planner": "ring", "wire": "bf16",
    "reproducible": true, "output": "", "save_latents": "ring.st", "model": "/models/wan",
    "model_fingerprint": "0123456789abcdef"},
  "run": {"ranks": 3, "target": "avx2"}})";

TEST(Sidecar, OfTheFirstVersion) {
  const TempFolder folder;
  Recipe recipe;
  ReadSidecar(folder.Write("old.json", kOldSidecar), recipe);
  EXPECT_EQ(recipe.Integer("ranks"), 3);
  EXPECT_EQ(recipe.Text("planner"), "ring");
  EXPECT_EQ(recipe.Text("wire"), "bf16");
  EXPECT_EQ(recipe.Number("cfg_scale"), 5);
  EXPECT_FALSE(recipe.Has("target"));
  EXPECT_EQ(recipe.SourceOf("model_fingerprint"), Source::kRecord);
}

TEST(Sidecar, WhatIsWrongIsNamed) {
  const TempFolder folder;
  for (const auto& [change, mention] : {
           std::pair(R"({"steps": "20"})", "a.json: steps 20: must be a number"),
           std::pair(R"({"steps": 0})", "a.json: steps 0: must be a whole number from 1 to 1000"),
           std::pair(R"({"prompt": null})", "a.json: 'prompt' is missing"),
           std::pair(R"({"sparkle": 1})", "unknown parameter 'sparkle', of equitile 0.1.0"),
           std::pair(R"({"weights": "auto"})", "weights auto: must be what the run had"),
           std::pair(R"({"seed": -1})", "seed -1: must be what the run had"),
           std::pair(R"({"vae_tiling": "yes"})", "vae_tiling yes: must be true or false"),
           std::pair(R"({"model_fingerprint": "12"})", "16 hexadecimal digits"),
       }) {
    Json document = Json::parse(kOldSidecar);
    document["parameters"].update(Json::parse(change));
    Recipe recipe;
    const std::string refusal =
        Refusal([&] { ReadSidecar(folder.Write("a.json", document.dump()), recipe); });
    EXPECT_NE(refusal.find(mention), std::string::npos) << change << "\n" << refusal;
  }
}

TEST(Recipe, OlderRunsHadTheDefaultsOfNewFields) {
  std::vector<RecipeField> fields(RecipeFields().begin(), RecipeFields().end());
  fields.push_back({.name = "sparkle",
                    .flags = "--sparkle",
                    .key = "sparkle",
                    .type = WholeNumber(),
                    .initial = "0",
                    .since = "0.10.0",
                    .help = "glitter"});
  const Recipe recipe(fields);
  Recipe::Texts identity;
  recipe.AddOlderDefaults("0.9.9", identity);
  EXPECT_EQ(identity, (Recipe::Texts{{"sparkle", "0"}}));
  identity["sparkle"] = "5";
  recipe.AddOlderDefaults("0.9.9", identity);
  EXPECT_EQ(identity["sparkle"], "5");
  identity.clear();
  recipe.AddOlderDefaults("0.10.0", identity);
  EXPECT_TRUE(identity.empty());
}

}  // namespace
}  // namespace equitile

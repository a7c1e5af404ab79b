// A field that is added to the table, and to nothing else, is everywhere.
#include "apps/generate/recipe_flags.h"

#include <gtest/gtest.h>

#include "apps/cli/command_line.h"
#include "apps/generate/generate_flags.h"
#include "equitile/comm/threads/run_ranks.h"
#include "equitile/generate/agreement.h"
#include "equitile/generate/run_checkpoint.h"
#include "equitile/generate/sidecar.h"
#include "tests/in_repository.h"
#include "tests/refusal.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

const std::string kModel = InRepository("models/wan-mini");

const std::vector<RecipeField>& FieldsAndOneMore() {
  static const std::vector<RecipeField> fields = [] {
    std::vector<RecipeField> all(RecipeFields().begin(), RecipeFields().end());
    all.push_back({.name = "sparkle",
                   .flags = "--sparkle",
                   .key = "sparkle",
                   .type = WholeNumber({.min = 0, .max = 9}),
                   .initial = "0",
                   .since = "1000.0.0",  // the next one, whichever this is
                   .help = "how much glitter"});
    return all;
  }();
  return fields;
}

// `equitile generate words…` up to its request.
class Command {
 public:
  explicit Command(std::vector<std::string> words) {
    flags_.recipe = Recipe(FieldsAndOneMore());
    AddGenerateFlags(generate_, flags_);
    for (const char* word : {kModel.c_str(), "-m", "a star", "-p", "generate"}) {
      words.insert(words.begin(), word);
    }
    ParseArguments(root_, std::move(words));
    CompleteFlags(generate_, flags_);
  }

  std::string Help() const { return generate_.help(); }
  const Recipe& recipe() const { return flags_.recipe; }
  GenerateRequest Request() {
    flags_.options.files = VideoFiles::kNone;
    return RequestOf(flags_);
  }

 private:
  GenerateFlags flags_;
  CLI::App root_;
  CLI::App& generate_ = *root_.add_subcommand("generate");
};

TEST(ANewField, IsAFlagWithHelp) {
  EXPECT_EQ(Command({"--sparkle", "3"}).recipe().Integer("sparkle"), 3);
  const std::string help = Command({}).Help();
  EXPECT_NE(help.find("--sparkle N=0"), std::string::npos) << help;
  EXPECT_NE(help.find("how much glitter"), std::string::npos);
  EXPECT_EQ(Refusal([] {
              Command({"--sparkle", "10"});
            }),
            "--sparkle 10: must be a whole number from 0 to 9");
}

TEST(AField, HasTheValueThatWasGivenLast) {
  EXPECT_EQ(Command({"--sparkle", "3", "--sparkle=4"}).recipe().Integer("sparkle"), 4);
  EXPECT_EQ(Command({"--steps", "3", "--num-inference-steps", "4"}).recipe().Integer("steps"), 4);
  const auto tiles = [](std::vector<std::string> words) {
    return Command(std::move(words)).recipe().IsOn("vae_tiling");
  };
  EXPECT_TRUE(tiles({"--no-vae-tiling", "--vae-tiling"}));
  EXPECT_FALSE(tiles({"--vae-tiling", "--vae-tiling", "--no-vae-tiling"}));
}

TEST(AField, MayHaveTheNameThatOthersGiveIt) {
  const Command command(
      {"--num-inference-steps", "7", "--guidance-scale", "2.5", "--num-frames", "9"});
  EXPECT_EQ(command.recipe().Integer("steps"), 7);
  EXPECT_EQ(command.recipe().Number("cfg_scale"), 2.5);
  EXPECT_EQ(command.recipe().Integer("video_frames"), 9);
}

TEST(ANewField, IsAKeyOfConfigFiles) {
  const TempFolder folder;
  const std::string toml = folder.Write("a.toml", "sparkle = 4  # much\n").string();
  const std::string json = folder.Write("a.json", R"({"sparkle": 5})").string();
  EXPECT_EQ(Command({"--config", toml}).recipe().Integer("sparkle"), 4);
  EXPECT_EQ(Command({"--config", json}).recipe().Integer("sparkle"), 5);
  EXPECT_EQ(Command({"--config", json, "--sparkle", "6"}).recipe().Integer("sparkle"), 6);
  const std::string wrong = folder.Write("b.toml", "sparkles = 4\n").string();
  EXPECT_EQ(Refusal([&] {
              Command({"--config", wrong});
            }),
            wrong + ": unknown key 'sparkles'; the nearest is sparkle");
}

TEST(ANewField, IsRecordedAndMadeAgain) {
  const TempFolder folder;
  Recipe made = Command({"--sparkle", "7"}).Request().recipe;
  made.Settle("weights", "f32");
  made.Settle("target", "portable");
  Json sidecar = SidecarJson(made, {{"ranks", 1}});
  EXPECT_EQ(sidecar["parameters"]["sparkle"], 7);
  const std::string path = folder.Write("a.json", sidecar.dump()).string();
  EXPECT_EQ(Command({"--from", path}).Request().recipe.Integer("sparkle"), 7);
  EXPECT_EQ(Command({"--from", path, "--sparkle", "8"}).Request().recipe.Integer("sparkle"), 8);
  const std::string toml = folder.Write("a.toml", "sparkle = 2\n").string();
  EXPECT_EQ(Command({"--from", path, "--config", toml}).Request().recipe.Integer("sparkle"), 2);
  sidecar["parameters"]["sparkle"] = 11;
  const std::string wrong = folder.Write("b.json", sidecar.dump()).string();
  EXPECT_NE(Refusal([&] {
              Command({"--from", wrong}).Request();
            }).find("sparkle 11: must be"),
            std::string::npos);
  // Of a version that did not have it.
  sidecar["parameters"].erase("sparkle");
  const std::string old = folder.Write("c.json", sidecar.dump()).string();
  EXPECT_EQ(Command({"--from", old}).Request().recipe.Integer("sparkle"), 0);
}

TEST(ANewField, HoldsARunThatGoesOn) {
  RunCheckpoint checkpoint;
  checkpoint.identity = Command({"--sparkle", "1"}).Request().recipe.BitsIdentity();
  EXPECT_NO_THROW(CheckSameRun("a.ckpt", checkpoint,
                               Command({"--sparkle", "1"}).Request().recipe.BitsIdentity()));
  EXPECT_NE(Refusal([&] {
              CheckSameRun("a.ckpt", checkpoint,
                           Command({"--sparkle", "2"}).Request().recipe.BitsIdentity());
            }).find("its sparkle is '1', not '2'"),
            std::string::npos);
}

TEST(ANewField, IsAgreedOnByRanks) {
  const std::vector<std::string> same = {"--sparkle", "1", "--ranks", "2"};
  const GenerateRequest one = Command(same).Request();
  const GenerateRequest other = Command({"--sparkle", "2", "--ranks", "2"}).Request();
  EXPECT_NO_THROW(RunRanks(2, [&](Communicator& comm) { AgreeOnRequest(comm, one); }));
  EXPECT_NE(Refusal([&] {
              RunRanks(2, [&](Communicator& comm) {
                AgreeOnRequest(comm, comm.rank() == 0 ? one : other);
              });
            }).find("rank 1 has another sparkle than rank 0"),
            std::string::npos);
}

TEST(Quality, StandsForFlagsWhereItWasGiven) {
  const TempFolder folder;
  const auto made = [](std::vector<std::string> words) {
    const Recipe recipe = Command(std::move(words)).Request().recipe;
    return recipe.Text("attention") + " " + recipe.Text("dense_steps") + " " + recipe.Text("cache");
  };
  const auto file = [&](const std::string& text) { return folder.Write("a.toml", text).string(); };
  const std::vector<std::string> small = {"--steps", "10"};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.end(), small.begin(), small.end());
    return made(words);
  };
  EXPECT_EQ(with({}), "dense auto none");
  EXPECT_EQ(with({"--quality", "exact"}), "dense auto none");
  const std::string draft = with({"--quality", "draft"});
  EXPECT_NE(draft, with({"--quality", "balanced"}));
  EXPECT_EQ(draft.find("dense"), std::string::npos) << draft;
  // Any flag beside it counts more, in whatever order.
  EXPECT_EQ(
      with({"--attention", "dense", "--quality", "draft", "--cache", "none", "--dense-steps", "3"}),
      "dense 3 none");
  // On the command line it counts more than a file, in a file less than the command line.
  const std::string flags = file("attention = 'dense'\ncache = 'none'\ndense-steps = '3'\n");
  EXPECT_EQ(with({"--quality", "draft", "--config", flags}), draft);
  EXPECT_EQ(with({"--config", file("quality = 'draft'\n")}), draft);
  EXPECT_NE(with({"--config", file("quality = 'draft'\ncache = 'none'\n")}).find(" none"),
            std::string::npos);
  EXPECT_NE(with({"--config", file("quality = 'draft'\n"), "--cache", "none"}).find(" none"),
            std::string::npos);
  EXPECT_EQ(Refusal([&] {
              with({"--quality", "best"});
            }),
            "--quality best: must be exact or high or balanced or draft");
}

TEST(Quality, CountsMoreThanARecordAndIsWrittenOut) {
  const TempFolder folder;
  Recipe made = Command({"--quality", "balanced"}).Request().recipe;
  made.Settle("weights", "f32");
  made.Settle("target", "portable");
  const Json sidecar = SidecarJson(made, {{"ranks", 1}});
  EXPECT_TRUE(sidecar["parameters"]["attention"].get<std::string>().starts_with("predict"));
  const std::string path = folder.Write("a.json", sidecar.dump()).string();
  const auto attention = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"--from", path});
    return Command(words).Request().recipe.Text("attention");
  };
  EXPECT_EQ(attention({}), made.Text("attention"));
  EXPECT_EQ(attention({"--quality", "exact"}), "dense");
}

TEST(Config, StandsForTheFlagsOfTheCommand) {
  const TempFolder folder;
  const auto with = [&](const std::string& text) {
    return Command({"--config", folder.Write("a.toml", text).string()});
  };
  EXPECT_EQ(with("cfg-scale = 2.5\nvae_tiling = true\nprompts='x'").recipe().Number("cfg_scale"),
            2.5);
  EXPECT_TRUE(with("vae_tiling = true").recipe().IsOn("vae_tiling"));
  EXPECT_FALSE(with("reproducible = false").recipe().IsOn("reproducible"));
  EXPECT_FALSE(with("json = false\ndry-run = true\nresume = true\nprompt = \"b\"")
                   .recipe()
                   .IsOn("vae_tiling"));
  EXPECT_EQ(with("seed = -1").recipe().Text("seed"), "-1");
  const std::string file = (folder / "a.toml").string();
  for (const auto& [text, mention] : {
           std::pair("stepz = 3", "unknown key 'stepz'; the nearest is steps"),
           std::pair("steps = 0", "--steps 0: must be a whole number from 1 to 1000"),
           std::pair("steps = true", "steps true: must be a value"),
           std::pair("vae-tiling = 1", "vae-tiling 1: must be true or false"),
           std::pair("config = 'x'", "unknown key 'config'"),
           std::pair("help = true", "unknown key 'help'"),
           std::pair("attention = 'dense'\nattention-backend = 'dense'", "is there twice"),
           std::pair("cfg-scale = 1\ncfg_scale = 1", "'cfg_scale' is there twice"),
       }) {
    const std::string refusal = Refusal([&] { with(text); });
    EXPECT_NE(refusal.find(mention), std::string::npos) << text << "\n" << refusal;
    EXPECT_NE(refusal.find(file), std::string::npos) << refusal;
  }
}

}  // namespace
}  // namespace equitile

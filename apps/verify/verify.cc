// `equitile verify`: are the results what they must be? Each kind of question is a file of its own;
// this one chooses.
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/commands.h"
#include "apps/cli/flags.h"
#include "apps/generate/recipe_flags.h"
#include "apps/verify/verify_golden.h"
#include "apps/verify/verify_plans.h"
#include "apps/verify/verify_video.h"
#include "equitile/base/error.h"
#include "equitile/generate/compute_choice.h"

namespace equitile {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  equitile verify --ranks 1,2,3,5,8 --planner all     # many ranks against one\n"
    "  equitile verify --mask mask.npy --planner fractional,dbsp:2x2 --ranks 4 --json\n"
    "  mpirun -n 3 equitile verify --planner all           # three processes against one\n"
    "  equitile verify --golden tests/golden --ranks 1,2,3,5  # every stage against diffusers\n"
    "  # one video, the same bits everywhere?\n"
    "  equitile verify -p \"a red circle\" --ranks 1,2,3 --threads 1,2 -W 64 -H 64 --steps 4\n"
    "Plans that keep rows whole promise the same bits; plans that split rows a bound, derived "
    "from\n"
    "lengths, norms and the unit roundoff, or the steps of integers (--compute). One rank is "
    "checked against a reference in double.\n"
    "For videos (-p) the bound is the relative L2 of latents and the rms of frames, also with\n"
    "--wire bf16.";

// Flags of the other kinds of question are mistakes.
void Refuse(const CLI::App& verify, std::initializer_list<const char*> flags, const char* with) {
  for (const char* flag : flags) {
    if (verify.count(flag) > 0) throw InputError("{}: not with {}", flag, with);
  }
}

void RefuseFlagsOfVideos(const Recipe& recipe) {
  for (const RecipeField& field : recipe.fields()) {
    const bool is_given = recipe.SourceOf(field.key) == Recipe::Source::kGiven;
    if (is_given && field.key != "seed" && field.key != "compute")
      throw InputError("{}: only with -p PROMPT", field.LongFlag());
  }
}

std::optional<int64_t> OneNumber(const std::vector<int64_t>& threads) {
  if (threads.size() > 1) throw InputError("--threads: several only with -p PROMPT");
  return threads.empty() ? std::nullopt : std::optional(threads.front());
}

struct VerifyRequest {
  VerifyPlansRequest plans;
  VerifyVideoRequest video;
  std::string golden;
};

void VerifyVideoOf(VerifyRequest& request, const CLI::App& verify) {
  Refuse(verify, {"--mask", "--synthetic", "--head-dim", "--golden"}, "-p");
  VerifyVideoRequest& video = request.video;
  video.flags.ranks = request.plans.on;
  if (verify.count("--planner") > 0) {
    video.flags.recipe.Set("planner", request.plans.planners, Recipe::Source::kGiven);
  }
  if (request.plans.ranks_given && UnderLauncher()) {
    throw InputError("--ranks: under mpirun its processes are the ranks; leave it out");
  }
  video.ranks = request.plans.ranks;
  video.json = request.plans.json;
  VerifyVideo(video);
}

void Verify(VerifyRequest& request, const CLI::App& verify) {
  VerifyPlansRequest& plans = request.plans;
  if (verify.count("--prompt") > 0) return VerifyVideoOf(request, verify);
  const Recipe& recipe = request.video.flags.recipe;
  RefuseFlagsOfVideos(recipe);
  plans.on.threads = OneNumber(request.video.threads);
  if (verify.count("--seed") > 0) plans.seed = recipe.Integer("seed");
  plans.compute = ComputeOf(recipe).attention;
  if (plans.seed < 0) throw InputError("--seed {}: must be 0 or more", plans.seed);
  if (verify.count("--golden") == 0) return VerifyPlans(plans);
  Refuse(verify, {"--mask", "--synthetic", "--planner", "--head-dim", "--seed", "--compute"},
         "--golden");
  VerifyGolden({.folder = request.golden,
                .ranks = plans.ranks_given ? plans.ranks : std::vector<int64_t>(),
                .on = plans.on,
                .json = plans.json});
}

}  // namespace

void RegisterVerify(CLI::App& parent) {
  CLI::App& verify = AddCommand(parent, "verify", "are the results what they must be?");
  auto request = std::make_shared<VerifyRequest>();
  AddVerifyPlans(verify, request->plans);
  AddNumbers(verify, "-t,--threads", request->video.threads, {.min = 1, .max = 1024},
             "threads per rank (default: allowed cores / ranks on this node); with -p several");
  verify
      .add_option("--golden", request->golden,
                  "compare every stage with what diffusers computed (the layout of tests/golden)")
      ->type_name("FOLDER");
  AddRecipeFlags(verify, request->video.flags.recipe, {"output", "save_latents", "planner"});
  verify.get_option("--prompt")
      ->description(
          "make this video on all --ranks and --threads: latents, frames and file must be "
          "the same, or within the stated bound; the flags below say how");
  verify.footer(kExamples);
  verify.callback([request, &verify] { Verify(*request, verify); });
}

}  // namespace equitile

#include "equitile/generate/agreement.h"

#include <fmt/format.h>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"
#include "equitile/exec/agree.h"
#include "equitile/exec/agreement.h"
#include "equitile/kernel/target.h"
#include "equitile/plan/planners/planner.h"

namespace equitile {
namespace {

// --from asks for the target of the recorded run, which was set where this process could; ranks
// elsewhere may not have it.
void CheckRecordedTarget(const Recipe& recipe, std::string_view agreed, const RunOptions& options) {
  if (recipe.SourceOf("target") != Recipe::Source::kRecord ||
      ParseArithmetic(recipe.Text("target")) == agreed || options.allows_other_target) {
    return;
  }
  throw InputError(
      "--from: was made with {}, here {} is what all ranks have; --allow-other-target makes it "
      "with "
      "other bits",
      recipe.Text("target"), agreed);
}

}  // namespace

Recipe AgreeOnRequest(Communicator& comm, const GenerateRequest& request,
                      std::map<std::string, std::string> also, const std::string& of) {
  Recipe recipe = request.recipe;
  const std::string target(AgreeOnArithmetic(comm));
  recipe.Settle("ranks", fmt::format("{}", comm.size()));
  also.merge(recipe.Identity());
  also.erase("seed");
  also.erase("target");
  also["--trace"] = request.options.trace.empty() ? "" : "given";
  also["--export-masses"] = request.options.masses.empty() ? "" : "given";
  also["--measure-mass"] = fmt::format("{}", request.options.measured_q_blocks);
  std::string& prompts = also["list of prompts"];
  for (const GenerateTask& task : request.tasks) prompts += task.prompt + '\n';
  std::map<std::string, uint64_t> hashes;
  for (const auto& [name, value] : also) {
    hashes[name + of] = Hasher().Add(std::string_view(value)).Digest();
  }
  CheckSame(comm, hashes);
  CheckRecordedTarget(recipe, target, request.options);
  ParsePlanner(recipe.Text("planner"), comm.size());  // throws where it does not fit
  recipe.Settle("target", target);
  return recipe;
}

WeightType AgreeOnWeights(Communicator& comm, WeightType weights) {
  auto choice = static_cast<uint64_t>(weights);
  comm.Broadcast(std::as_writable_bytes(std::span(&choice, 1)), 0);
  return static_cast<WeightType>(choice);
}

}  // namespace equitile

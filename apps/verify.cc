// `equitile verify`: are the results what they must be? Each kind of question is a file of its own;
// this one chooses.
#include <memory>

#include "apps/commands.h"
#include "apps/verify_golden.h"
#include "apps/verify_plans.h"
#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  equitile verify --ranks 1,2,3,5,8 --planner all  many ranks against one\n"
    "  equitile verify --mask mask.npy --planner fractional,dbsp:2x2 --ranks 4 --json\n"
    "  mpirun -n 3 equitile verify --planner all        three processes against one\n"
    "  equitile verify --golden tests/golden --ranks 1,2,3,5  every stage against diffusers\n"
    "Plans that keep rows whole promise the same bits; plans that split rows a bound, derived "
    "from\n"
    "lengths, norms and the unit roundoff. One rank is checked against a reference in double.";

}  // namespace

void RegisterVerify(CLI::App& parent) {
  CLI::App& verify = *parent.add_subcommand("verify", "are the results what they must be?");
  auto plans = std::make_shared<VerifyPlansRequest>();
  auto golden = std::make_shared<std::string>();
  AddVerifyPlans(verify, *plans);
  CLI::Option* folder = verify.add_option(
      "--golden", *golden,
      "compare every stage with what diffusers computed (the layout of tests/golden)");
  folder->type_name("FOLDER");
  verify.footer(kExamples);
  verify.callback([plans, golden, folder, &verify] {
    if (folder->count() == 0) {
      VerifyPlans(*plans);
      return;
    }
    for (const char* flag : {"--mask", "--synthetic", "--planner", "--head-dim"}) {
      if (verify.count(flag) > 0) throw InputError("{}: not with --golden", flag);
    }
    VerifyGolden({.folder = *golden,
                  .ranks = plans->ranks_given ? plans->ranks : std::vector<int64_t>(),
                  .on = plans->on,
                  .json = plans->json});
  });
}

}  // namespace equitile

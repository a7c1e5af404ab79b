// `equitile verify`: are the results what they must be?
#include <memory>

#include "apps/commands.h"
#include "apps/flags.h"
#include "apps/verify_golden.h"
#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  equitile verify --golden tests/golden           every stage against diffusers\n"
    "  equitile verify --golden tests/golden --json";

}  // namespace

void RegisterVerify(CLI::App& parent) {
  CLI::App& verify = *parent.add_subcommand("verify", "are the results what they must be?");
  auto options = std::make_shared<VerifyGoldenOptions>();
  verify
      .add_option("--golden", options->folder,
                  "compare every stage with what diffusers computed (the layout of tests/golden)")
      ->type_name("FOLDER")
      ->required();
  AddRanks(verify, options->ranks, RanksFlag::kWithout);
  AddJson(verify, options->json);
  verify.footer(kExamples);
  verify.callback([options] { VerifyGolden(*options); });
}

}  // namespace equitile

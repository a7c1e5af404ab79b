// `equitile bench`: the parent of everything that measures. Each bench is a command of its own,
// listed in commands.h.
#include "apps/cli/commands.h"
#include "apps/cli/flags.h"

namespace equitile {

void RegisterBench(CLI::App& parent) {
  CLI::App& bench =
      AddCommand(parent, "bench", "measure how fast this machine runs a part of the work");
  bench.require_subcommand(1);
#define EQUITILE_REGISTER(name) name(bench);
  EQUITILE_BENCHES(EQUITILE_REGISTER)
#undef EQUITILE_REGISTER
  bench.footer("equitile bench COMMAND --help shows the flags of one of them, with examples.");
}

}  // namespace equitile

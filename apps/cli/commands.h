// The list of commands. A new command is a new file that defines its Register function, and one
// line here.
#pragma once

#include <CLI/CLI.hpp>

namespace equitile {

// A Register function adds its command to `parent`: flags, help with examples, and a callback that
// runs it. The callback throws InputError (exit code 2) or Error (exit code 1); see command_line.h.
using RegisterCommand = void(CLI::App& parent);

// In the order in which --help shows them.
#define EQUITILE_COMMANDS(COMMAND) \
  COMMAND(RegisterGenerate)        \
  COMMAND(RegisterSearch)          \
  COMMAND(RegisterPlan)            \
  COMMAND(RegisterVerify)          \
  COMMAND(RegisterInspect)         \
  COMMAND(RegisterCompare)         \
  COMMAND(RegisterBench)

// The commands of `equitile bench`.
#define EQUITILE_BENCHES(COMMAND) \
  COMMAND(RegisterBenchAttention) \
  COMMAND(RegisterBenchE2e)       \
  COMMAND(RegisterBenchLinear)    \
  COMMAND(RegisterBenchPlan)      \
  COMMAND(RegisterBenchMachine)   \
  COMMAND(RegisterBenchParallel)  \
  COMMAND(RegisterBenchReuse)

#define EQUITILE_DECLARE(name) RegisterCommand name;
EQUITILE_COMMANDS(EQUITILE_DECLARE)
EQUITILE_BENCHES(EQUITILE_DECLARE)
#undef EQUITILE_DECLARE

}  // namespace equitile

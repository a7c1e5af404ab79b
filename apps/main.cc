// The `equitile` command.
#include <string>
#include <vector>

#include "apps/cli/command_line.h"
#include "equitile/comm/mpi/launch.h"

int main(int argc, char** argv) {
  return equitile::mpi::End(
      equitile::RunCommandLine(std::vector<std::string>(argv + 1, argv + argc)));
}

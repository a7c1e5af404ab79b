// The `equitile` command.
#include <string>
#include <vector>

#include "apps/command_line.h"

int main(int argc, char** argv) {
  return equitile::RunCommandLine(std::vector<std::string>(argv + 1, argv + argc));
}

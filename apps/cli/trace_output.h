// --trace FILE of every command that runs on ranks.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "equitile/exec/trace.h"

namespace equitile {

CLI::Option* AddTrace(CLI::App& app, std::string& path);

// Collective: rank 0 writes the file.
void WriteTrace(const std::string& path, Communicator& comm, const Trace& trace);

}  // namespace equitile

// From arguments to an exit code: what all commands share, apart from main() so that tests can call
// it.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace equitile {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;    // we failed, or a check that was asked for is false
inline constexpr int kUnusable = 2;  // what was given cannot be used

// Runs `equitile args…` (without the program's name). Prints at most one line on stderr when the
// exit code is not 0.
int RunCommandLine(const std::vector<std::string>& args);

// Parses for an `app` whose commands have their flags; --flag_name is --flag-name. Throws
// InputError in the words of this program.
void ParseArguments(CLI::App& app, std::vector<std::string> args);

// Runs `work`, turning exceptions into one line on stderr and an exit code.
int ExitCodeOf(const std::function<void()>& work);

}  // namespace equitile

// Flags with checked values: numbers within bounds, words from a list, and comma lists of both.
// CLI11's own checks name neither the offending value nor what would be right.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "equitile/base/checked_value.h"

namespace equitile {

// A command of `parent`. Whoever makes a CLI::App compiles all of CLI11, which is headers only:
// here, so that others need not.
CLI::App& AddCommand(CLI::App& parent, const std::string& name, const std::string& help);

// All of these keep what `value` holds as the default (shown in --help), and throw InputError for
// anything that is not a finite number within `bounds`, or not one of `choices`. `name` is as in
// CLI11: "-t,--threads".
CLI::Option* AddNumber(CLI::App& app, const std::string& name, int64_t& value,
                       Bounds<int64_t> bounds, const std::string& help);
CLI::Option* AddNumber(CLI::App& app, const std::string& name, std::optional<int64_t>& value,
                       Bounds<int64_t> bounds, const std::string& help);
CLI::Option* AddNumber(CLI::App& app, const std::string& name, double& value, Bounds<double> bounds,
                       const std::string& help);
CLI::Option* AddNumber(CLI::App& app, const std::string& name, std::optional<double>& value,
                       Bounds<double> bounds, const std::string& help);
CLI::Option* AddChoice(CLI::App& app, const std::string& name, std::string& value,
                       const std::vector<std::string>& choices, const std::string& help);
CLI::Option* AddChoice(CLI::App& app, const std::string& name, std::optional<std::string>& value,
                       const std::vector<std::string>& choices, const std::string& help);

// Comma lists: --density 1,0.5,0.25
CLI::Option* AddNumbers(CLI::App& app, const std::string& name, std::vector<int64_t>& values,
                        Bounds<int64_t> bounds, const std::string& help);
CLI::Option* AddNumbers(CLI::App& app, const std::string& name, std::vector<double>& values,
                        Bounds<double> bounds, const std::string& help);
CLI::Option* AddChoices(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                        const std::vector<std::string>& choices, const std::string& help);

// --json: standard output holds one JSON value and nothing else.
CLI::Option* AddJson(CLI::App& app, bool& json);

}  // namespace equitile

// Flags that take comma lists, and every combination of their values: the lines of a bench's table.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace equitile {

// How long the list is, and how its i-th value is set in a Setting, which is one line of the table.
template <typename Setting>
struct ListFlag {
  const CLI::Option* option;
  std::function<size_t()> size;
  std::function<void(Setting&, size_t)> set;
};

// `values` is read after parsing and must live as long as the flag.
template <typename Setting, typename Value>
ListFlag<Setting> MakeListFlag(const CLI::Option* option, const std::vector<Value>& values,
                               Value Setting::*member) {
  return {option, [&values] { return values.size(); },
          [&values, member](Setting& setting, size_t i) { setting.*member = values[i]; }};
}

// The flag that was given first changes slowest; flags that were not given do not matter.
template <typename Setting>
std::vector<Setting> Combinations(const CLI::App& app, std::vector<ListFlag<Setting>> flags) {
  const auto& given = app.parse_order();
  std::stable_sort(flags.begin(), flags.end(),
                   [&](const ListFlag<Setting>& a, const ListFlag<Setting>& b) {
                     return std::find(given.begin(), given.end(), a.option) <
                            std::find(given.begin(), given.end(), b.option);
                   });
  std::vector<Setting> settings(1);
  for (const ListFlag<Setting>& flag : flags) {
    std::vector<Setting> longer;
    for (const Setting& setting : settings) {
      for (size_t i = 0; i < flag.size(); ++i) {
        longer.push_back(setting);
        flag.set(longer.back(), i);
      }
    }
    settings = std::move(longer);
  }
  return settings;
}

// Places of settings that differ in nothing but this member, each group in the order of the list:
// what is timed in turns.
template <typename Setting, typename Value>
std::vector<std::vector<size_t>> AlikeBut(Value Setting::*member, std::vector<Setting> settings) {
  for (Setting& setting : settings) setting.*member = {};
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < settings.size(); ++i) {
    const auto group = std::ranges::find_if(
        groups, [&](const auto& other) { return settings[other[0]] == settings[i]; });
    group == groups.end() ? groups.push_back({i}) : group->push_back(i);
  }
  return groups;
}

}  // namespace equitile

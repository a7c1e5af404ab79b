// What a bench prints in the end: its table, for people or for programs.
#pragma once

#include <fmt/format.h>

#include <cstdio>

#include "apps/cli/table.h"

namespace equitile {

inline void PrintTable(const Table& table, bool as_json) {
  if (as_json) {
    PrintJson(table.ToJson());
  } else {
    fmt::print("{}", table.ToText(Terminal::Of(stdout)));
  }
}

}  // namespace equitile

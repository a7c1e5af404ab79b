// What sources of masks and skipped steps keep between steps, by name: part of a run's checkpoint,
// the same on every rank.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace equitile {

using SourceState = std::map<std::string, std::vector<std::byte>>;

}  // namespace equitile

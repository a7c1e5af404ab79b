// Names of files that are not complete yet. They say who writes them, so that a later run can tell
// what a killed one has left from what somebody is writing at this moment.
#pragma once

#include <filesystem>

namespace equitile {

// Beside the target, unique, hidden so that a glob for outputs does not find it:
// .NAME.HOST-PROCESS-START-NUMBER.tmp, where HOST stands for the machine, its boot and the
// namespace of process ids, and START for the time when the process began.
std::filesystem::path TemporaryName(const std::filesystem::path& target);

// Removes temporary files of this target whose process is surely gone: it belonged to this HOST,
// and its number is nobody's or somebody's who began at another time. What other hosts and earlier
// boots have left stays: whether they live cannot be seen from here. Looks into each folder once.
void RemoveLeftovers(const std::filesystem::path& target);

}  // namespace equitile

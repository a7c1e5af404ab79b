// How many cores this process may use, and how many ranks share them: what the default number of
// threads follows from. The parsing is apart from the asking, so that machines we do not have can
// be tested.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "equitile/base/function_ref.h"

namespace equitile {

// Cores in the affinity mask, but no more than the cgroup's processor quota (rounded up); at
// least 1.
int AllowedCores();

// From the launcher's environment (Open MPI, MPICH, Slurm); 1 without one.
int RanksOnNode();

// Allowed cores / ranks on this node, at least 1.
int DefaultThreads();

namespace internal {

// Cores of a cgroup v2 cpu.max ("max 100000", "150000 100000"); nothing when unlimited or not
// understood.
std::optional<double> ParseCpuMax(std::string_view text);

// Cores of a cgroup v1 cpu.cfs_quota_us and cpu.cfs_period_us; nothing for a quota of -1 or not
// understood.
std::optional<double> ParseCfsQuota(std::string_view quota, std::string_view period);

// The tightest quota of the process's cgroup and its ancestors. `mount` is /sys/fs/cgroup,
// `proc_cgroup` the text of /proc/self/cgroup. Inside a container the listed path may not exist
// below the mount: what exists of it counts.
std::optional<double> CgroupCores(const std::filesystem::path& mount, std::string_view proc_cgroup);

int CoresWithin(int affinity_cores, std::optional<double> quota_cores);

// `variable` gives the value of an environment variable or nullptr.
int RanksOnNode(FunctionRef<const char*(const char* name)> variable);

}  // namespace internal
}  // namespace equitile

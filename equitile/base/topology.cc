#include "equitile/base/topology.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace equitile {
namespace {

// The integer that `text` begins with, after spaces.
std::optional<long> LeadingInteger(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n"), text.size()));
  long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

std::optional<double> Ratio(std::optional<long> quota, std::optional<long> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

std::string ReadText(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  return text.str();
}

std::optional<double> Least(std::optional<double> a, std::optional<double> b) {
  if (!a) return b;
  return b ? std::min(*a, *b) : a;
}

// The quota in one cgroup directory, of either version.
std::optional<double> DirectoryCores(const std::filesystem::path& directory) {
  return Least(internal::ParseCpuMax(ReadText(directory / "cpu.max")),
               internal::ParseCfsQuota(ReadText(directory / "cpu.cfs_quota_us"),
                                       ReadText(directory / "cpu.cfs_period_us")));
}

// `root`/`group` and every directory between it and `root`, `root` included.
std::optional<double> ChainCores(const std::filesystem::path& root, std::string_view group) {
  std::optional<double> cores = DirectoryCores(root);
  std::filesystem::path directory = root;
  for (const auto& part : std::filesystem::path(group).relative_path()) {
    if (part == "..") break;  // outside of what this namespace shows
    directory /= part;
    cores = Least(cores, DirectoryCores(directory));
  }
  return cores;
}

bool ListsController(std::string_view controllers, std::string_view name) {
  while (!controllers.empty()) {
    const size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == name) return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

int AffinityCores() {
#if defined(__linux__)
  // Doubled until the kernel's mask fits: machines with more than 1024 processors exist.
  for (int cpus = CPU_SETSIZE; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(cpus));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(cpus));
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    const int count = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (known) return count;
  }
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

namespace internal {

std::optional<double> ParseCpuMax(std::string_view text) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  return Ratio(LeadingInteger(text.substr(0, space)), LeadingInteger(text.substr(space + 1)));
}

std::optional<double> ParseCfsQuota(std::string_view quota, std::string_view period) {
  return Ratio(LeadingInteger(quota), LeadingInteger(period));
}

std::optional<double> CgroupCores(const std::filesystem::path& mount,
                                  std::string_view proc_cgroup) {
  std::optional<double> cores;
  while (!proc_cgroup.empty()) {
    const size_t end = std::min(proc_cgroup.find('\n'), proc_cgroup.size());
    const std::string_view line = proc_cgroup.substr(0, end);
    proc_cgroup.remove_prefix(std::min(end + 1, proc_cgroup.size()));
    // hierarchy:controllers:path
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string_view group = line.substr(second + 1);
    if (controllers.empty()) cores = Least(cores, ChainCores(mount, group));
    if (ListsController(controllers, "cpu")) {
      cores = Least(cores, ChainCores(mount / std::string(controllers), group));
      if (controllers != "cpu") cores = Least(cores, ChainCores(mount / "cpu", group));
    }
  }
  return cores;
}

int CoresWithin(int affinity_cores, std::optional<double> quota_cores) {
  int cores = std::max(1, affinity_cores);
  if (quota_cores && *quota_cores < cores) {
    cores = std::max(1, static_cast<int>(std::ceil(*quota_cores)));
  }
  return cores;
}

int RanksOnNode(FunctionRef<const char*(const char* name)> variable) {
  for (const char* name :
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"}) {
    const char* text = variable(name);
    const std::optional<long> ranks = text == nullptr ? std::nullopt : LeadingInteger(text);
    if (ranks && *ranks >= 1 && *ranks < 1'000'000) return static_cast<int>(*ranks);
  }
  return 1;
}

}  // namespace internal

int AllowedCores() {
  return internal::CoresWithin(
      AffinityCores(), internal::CgroupCores("/sys/fs/cgroup", ReadText("/proc/self/cgroup")));
}

int RanksOnNode() {
  return internal::RanksOnNode([](const char* name) -> const char* { return std::getenv(name); });
}

int DefaultThreads() { return std::max(1, AllowedCores() / RanksOnNode()); }

}  // namespace equitile

#include "equitile/io/temporary_name.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEnd = ".tmp";

// Within it a process is known by its number and its beginning. Nothing where the system does not
// tell. The host's name is for virtual machines that were started from one snapshot.
std::optional<uint32_t> Host() {
  std::string text;
  std::error_code error;
  if (!std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text)) return std::nullopt;
  text += fs::read_symlink("/proc/self/ns/pid", error).string();
  if (error) return std::nullopt;
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) text += name.data();
  return static_cast<uint32_t>(MixBits(Fnv1a64(text)));
}

// In ticks since the boot: field 22 of proc(5)'s stat, the second of which may hold anything.
std::optional<uint64_t> StartOf(int64_t process) {
  std::stringstream text;
  text << std::ifstream(fmt::format("/proc/{}/stat", process)).rdbuf();
  const std::string line = text.str();
  std::istringstream fields(line.substr(std::min(line.rfind(')') + 1, line.size())));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;
  uint64_t start = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), start);
  return fields && error == std::errc{} ? std::optional(start) : std::nullopt;
}

struct Owner {
  uint32_t host = 0;
  int64_t process = 0;
  uint64_t start = 0;
};

bool IsGone(const Owner& owner) {
  if (owner.host != Host()) return false;
  // Also for processes of others that /proc does not show.
  if (kill(static_cast<pid_t>(owner.process), 0) != 0) return errno == ESRCH;
  const std::optional<uint64_t> start = StartOf(owner.process);
  return start && *start != owner.start;
}

struct Leftover {
  std::string of;  // the target's name
  fs::path path;
};

template <typename T>
bool Take(std::string_view& text, int base, char end, T& value) {
  const auto [stop, error] = std::from_chars(text.begin(), text.end(), value, base);
  if (error != std::errc{} ||
      (end != 0 ? stop == text.end() || *stop != end : stop != text.end())) {
    return false;
  }
  text.remove_prefix(static_cast<size_t>(stop - text.begin()) + (end != 0 ? 1 : 0));
  return true;
}

// What `path` is a leftover of, if it is one.
std::optional<Leftover> AsLeftover(const fs::path& path) {
  const std::string name = path.filename().string();
  std::string_view rest = name;
  if (rest.size() <= kEnd.size() || !rest.starts_with('.') || !rest.ends_with(kEnd)) {
    return std::nullopt;
  }
  rest.remove_prefix(1);
  rest.remove_suffix(kEnd.size());
  const size_t dot = rest.rfind('.');
  if (dot == rest.npos || dot == 0) return std::nullopt;
  const std::string_view target = rest.substr(0, dot);
  rest.remove_prefix(dot + 1);
  Owner owner;
  uint64_t number = 0;
  if (!Take(rest, 16, '-', owner.host) || !Take(rest, 10, '-', owner.process) ||
      !Take(rest, 16, '-', owner.start) || !Take(rest, 10, 0, number) || owner.process < 1 ||
      !IsGone(owner)) {
    return std::nullopt;
  }
  return Leftover{std::string(target), path};
}

std::vector<Leftover> FindLeftovers(const fs::path& folder) {
  std::vector<Leftover> found;
  std::error_code error;
  fs::directory_iterator entries(folder.empty() ? "." : folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (auto leftover = AsLeftover(entries->path())) found.push_back(std::move(*leftover));
  }
  return found;
}

}  // namespace

fs::path TemporaryName(const fs::path& target) {
  static std::atomic<int> counter{0};
  const int64_t process = getpid();
  return target.parent_path() / fmt::format(".{}.{:08x}-{}-{:x}-{}{}", target.filename().string(),
                                            Host().value_or(0), process,
                                            StartOf(process).value_or(0), counter++, kEnd);
}

void RemoveLeftovers(const fs::path& target) {
  static std::mutex mutex;
  static std::map<fs::path, std::vector<Leftover>> folders;
  const std::lock_guard lock(mutex);
  std::error_code ignored;
  const auto [found, is_new] =
      folders.try_emplace(fs::absolute(target, ignored).parent_path(), std::vector<Leftover>());
  if (is_new) found->second = FindLeftovers(found->first);
  std::erase_if(found->second, [&](const Leftover& leftover) {
    if (leftover.of != target.filename()) return false;
    fs::remove(leftover.path, ignored);
    return true;
  });
}

}  // namespace equitile

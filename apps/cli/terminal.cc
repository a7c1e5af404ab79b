#include "apps/cli/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "equitile/comm/mpi/launch.h"

namespace equitile {
namespace {

std::string_view Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

// The first of these that is set and not empty decides, as in setlocale(3). Nothing set: a
// container or a job script, whose output is read in UTF-8 nowadays.
bool LocaleIsUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string_view locale = Environment(name);
    if (locale.empty()) continue;
    return locale.find("UTF-8") != locale.npos || locale.find("utf8") != locale.npos;
  }
  return true;
}

}  // namespace

Terminal Terminal::Of(std::FILE* stream) {
  Terminal terminal;
  const int fd = fileno(stream);
  terminal.interactive = isatty(fd) == 1 && !mpi::LaunchedRank();
  terminal.color =
      terminal.interactive && Environment("NO_COLOR").empty() && Environment("TERM") != "dumb";
  terminal.unicode = LocaleIsUtf8();
  winsize size{};
  if (terminal.interactive && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    terminal.columns = std::max<int64_t>(20, size.ws_col);
  }
  return terminal;
}

std::string Terminal::Letters(std::string text) const {
  if (unicode) return text;
  for (const auto& [sign, word] : {std::pair<std::string_view, std::string_view>{"ρ", "rho"},
                                   {"×", "x"},
                                   {"–", "-"},
                                   {"−", "-"}}) {
    for (size_t at; (at = text.find(sign)) != text.npos;) text.replace(at, sign.size(), word);
  }
  return text;
}

std::string Terminal::Bold(std::string_view text) const {
  return color ? fmt::format("\x1b[1m{}\x1b[0m", text) : std::string(text);
}

std::string Terminal::Dim(std::string_view text) const {
  return color ? fmt::format("\x1b[2m{}\x1b[0m", text) : std::string(text);
}

}  // namespace equitile

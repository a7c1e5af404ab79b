#include "apps/cli/progress.h"

#include <fmt/format.h>

#include <utility>

namespace equitile {
namespace {

std::chrono::steady_clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

// At most `columns` bytes, without cutting a UTF-8 letter in two.
std::string Cut(std::string line, size_t columns) {
  if (line.size() <= columns) return line;
  while (columns > 0 && (static_cast<unsigned char>(line[columns]) & 0xC0) == 0x80) --columns;
  line.resize(columns);
  return line;
}

}  // namespace

Progress::Progress(std::string what, Options options)
    : what_(std::move(what)),
      options_(options),
      terminal_(Terminal::Of(options.stream)),
      next_(begin_ + Seconds(options.quiet_seconds)) {}

Progress::~Progress() {
  if (shown_ && terminal_.interactive) {
    fmt::print(options_.stream, "\r\x1b[K");
    std::fflush(options_.stream);
  }
}

bool Progress::IsTime() {
  const Clock::time_point now = Clock::now();
  if (now < next_) return false;
  next_ = now + Seconds(terminal_.interactive ? options_.redraw_seconds : options_.repeat_seconds);
  return true;
}

void Progress::Show(std::string_view line) {
  if (IsTime()) Draw(std::string(line));
}

void Progress::Report(int64_t done, int64_t total, std::string_view detail) {
  if (!IsTime()) return;
  std::string line = fmt::format("{}: {}/{}", what_, done, total);
  if (done > 0) {
    const double elapsed = std::chrono::duration<double>(Clock::now() - begin_).count();
    line += fmt::format(", {:.1f} s left",
                        elapsed / static_cast<double>(done) * static_cast<double>(total - done));
  }
  if (!detail.empty()) line += fmt::format(", {}", detail);
  Draw(std::move(line));
}

void Progress::Draw(std::string line) {
  if (terminal_.interactive) {
    fmt::print(options_.stream, "\r\x1b[K{}",
               Cut(line, static_cast<size_t>(terminal_.columns) - 1));
  } else {
    fmt::print(options_.stream, "{}\n", line);
  }
  std::fflush(options_.stream);
  shown_ = true;
}

}  // namespace equitile

#include "apps/cli/progress.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "apps/cli/wrapped_text.h"
#include "equitile/base/duration.h"

namespace equitile {
namespace {

std::chrono::steady_clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

// At most `columns` letters of UTF-8, one column each.
std::string Cut(std::string line, int64_t columns) {
  for (size_t i = 0; i < line.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(line[i]) & 0xC0) != 0x80;
    if (begins && columns-- == 0) {
      line.resize(i);
      break;
    }
  }
  return line;
}

std::string Repeated(std::string_view sign, int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += sign;
  return text;
}

}  // namespace

Progress::Progress(std::string what, Options options)
    : what_(std::move(what)),
      options_(options),
      terminal_(Terminal::Of(options.stream)),
      next_(begin_ + Seconds(options.quiet_seconds)) {}

void Progress::Head(std::string line) {
  head_ = std::move(line);
  if (terminal_.interactive) PrintHead();
}

void Progress::PrintHead() {
  if (head_.empty()) return;
  const std::string head = terminal_.Letters(std::exchange(head_, ""));
  const auto columns = static_cast<size_t>(terminal_.columns - 3);
  const auto lines = terminal_.interactive ? WrappedLines(head, columns) : std::vector{head};
  fmt::print(options_.stream, "{}\n", fmt::join(lines, "\n  "));
}

void Progress::Clear() {
  if (!shown_ || !terminal_.interactive) return;
  fmt::print(options_.stream, "\r\x1b[K");
  std::fflush(options_.stream);
  shown_ = false;
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

void Progress::ShowBar(std::string_view what, std::string_view count, double part,
                       std::string_view detail) {
  const bool is_another = std::exchange(bar_of_, std::string(what)) != what;
  const bool is_last = shown_ && part >= 1;
  if (terminal_.interactive && (is_another || is_last)) next_ = Clock::now();
  if (!IsTime()) return;
  const std::string before = fmt::format("{} {}", what, count);
  const std::string after =
      terminal_.Letters(fmt::format("{}{}", detail.empty() ? "" : "  ", detail));
  const auto words = static_cast<int64_t>(TextWidth(before) + TextWidth(after));
  Draw(before + Bar(terminal_.columns - 1 - words, part) + after);
}

// With the blank before it; "" where there is no room, or nobody who looks.
std::string Progress::Bar(int64_t columns, double part) const {
  constexpr int64_t kLeast = 4, kMost = 30;
  const int64_t cells = std::min(columns - 1, kMost);
  if (!terminal_.interactive || cells < kLeast) return "";
  const double exact = part * static_cast<double>(cells);
  const int64_t full = std::clamp<int64_t>(std::llround(exact), 0, cells);
  return " " + Repeated(terminal_.unicode ? "█" : "#", full) +
         Repeated(terminal_.unicode ? "░" : "-", cells - full);
}

void Progress::Report(int64_t done, int64_t total, std::string_view detail) {
  if (!IsTime()) return;
  std::string line = fmt::format("{}: {}/{}", what_, done, total);
  if (done > 0) {
    const double elapsed = std::chrono::duration<double>(Clock::now() - begin_).count();
    line += fmt::format(", {} left", DurationText(elapsed / static_cast<double>(done) *
                                                  static_cast<double>(total - done)));
  }
  if (!detail.empty()) line += fmt::format(", {}", detail);
  Draw(std::move(line));
}

void Progress::Draw(std::string line) {
  PrintHead();
  if (terminal_.interactive) {
    fmt::print(options_.stream, "\r\x1b[K{}", Cut(std::move(line), terminal_.columns - 1));
  } else {
    fmt::print(options_.stream, "{}\n", line);
  }
  std::fflush(options_.stream);
  shown_ = true;
}

}  // namespace equitile

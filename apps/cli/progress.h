// One line on stderr that says how far a long piece of work is. Short work never shows it.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "apps/cli/terminal.h"

namespace equitile {

// Not thread-safe: the thread that hands out the work reports it.
class Progress {
 public:
  struct Options {
    std::FILE* stream = stderr;
    double quiet_seconds = 2.0;    // nothing is shown before
    double redraw_seconds = 0.1;   // on a terminal, where the line is redrawn
    double repeat_seconds = 10.0;  // elsewhere, where every report is a line of its own
  };

  explicit Progress(std::string what) : Progress(std::move(what), Options()) {}
  Progress(std::string what, Options options);
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // "what: 3/20, 12 s left, detail"
  void Report(int64_t done, int64_t total, std::string_view detail = {});
  // A line of the caller's own words, where it is time for one.
  void Show(std::string_view line);
  // The same with a bar on a terminal, as long as there is room: "step 7/20 ███████░░░░░  1.83
  // s/it". There it is always time for another `what`, whose first piece may take long, and for its
  // end.
  void ShowBar(std::string_view what, std::string_view count, double part, std::string_view detail);

  // A line that says once what this is about: at once on a terminal, elsewhere with the first
  // report, so that short work is silent.
  void Head(std::string line);
  // Takes the line away, for whoever prints something else now.
  void Clear();

 private:
  bool IsTime();
  void PrintHead();
  std::string Bar(int64_t columns, double part) const;
  void Draw(std::string line);

  using Clock = std::chrono::steady_clock;

  std::string what_, head_, bar_of_;
  Options options_;
  Terminal terminal_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point next_;
  bool shown_ = false;
};

}  // namespace equitile

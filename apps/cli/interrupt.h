// Ctrl-C as a question that long work asks between two steps, so that it can leave in order.
#pragma once

#include <string_view>

namespace equitile {

// While it lives the first SIGINT or SIGTERM is only noted; the second one ends the process as
// usual. One at a time.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  static bool Requested();  // any thread

  // What is written to stderr at once when the signal comes, instead of what people at a terminal
  // are told: for processes whose launcher kills them a second later. One line, cut where it is
  // too long for the handler.
  static void SetNote(std::string_view line);
  // That line, once it has been written; "" before, and where there was none.
  static std::string_view ShownNote();
};

}  // namespace equitile

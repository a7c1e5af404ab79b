// Ctrl-C as a question that long work asks between two steps, so that it can leave in order.
#pragma once

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
};

}  // namespace equitile

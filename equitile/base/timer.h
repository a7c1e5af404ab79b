// The one clock.
#pragma once

#include <chrono>

namespace equitile {

// Seconds since some fixed moment; never goes back.
inline double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Stopwatch {
 public:
  double Seconds() const { return NowSeconds() - start_; }
  void Restart() { start_ = NowSeconds(); }

 private:
  double start_ = NowSeconds();
};

}  // namespace equitile

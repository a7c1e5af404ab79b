// Scratch memory that kernel calls reuse, so that a layer allocates nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/base/growing_buffer.h"

namespace equitile {

// One per pool of threads; one call at a time.
class Workspace {
 public:
  // Room for `count` objects that the threads share, contents undefined; valid until the next call
  // of the same function.
  template <typename T>
  T* Shared(int64_t count) {
    return shared_.Get<T>(count);
  }

  // The same for each of `threads` threads. Called before the threads start: ForThread then only
  // reads.
  template <typename T>
  void ReservePerThread(int threads, int64_t count) {
    if (per_thread_.size() < static_cast<size_t>(threads))
      per_thread_.resize(static_cast<size_t>(threads));
    for (int thread = 0; thread < threads; ++thread)
      per_thread_[static_cast<size_t>(thread)].Get<T>(count);
  }
  template <typename T>
  T* ForThread(int thread) {
    return per_thread_[static_cast<size_t>(thread)].Data<T>();
  }

  int64_t Bytes() const {
    int64_t bytes = shared_.Bytes();
    for (const GrowingBuffer& buffer : per_thread_) bytes += buffer.Bytes();
    return bytes;
  }

 private:
  GrowingBuffer shared_;
  std::vector<GrowingBuffer> per_thread_;
};

}  // namespace equitile

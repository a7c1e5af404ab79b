// Scratch memory that kernel calls reuse, so that a layer allocates nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/base/aligned_buffer.h"

namespace equitile {

// One per pool of threads; one call at a time. Grows to what the largest call needs and stays
// there.
class Workspace {
 public:
  // At least `floats` floats, contents undefined; valid until the next call of the same function.
  float* Shared(int64_t floats) {
    if (shared_.size() < floats) shared_ = AlignedBuffer<float>(floats);
    return shared_.data();
  }

  // The same for each of `threads` threads. Called before the threads start: ForThread then only
  // reads.
  void ReservePerThread(int threads, int64_t floats) {
    if (per_thread_.size() < static_cast<size_t>(threads)) {
      per_thread_.resize(static_cast<size_t>(threads));
    }
    for (AlignedBuffer<float>& buffer : per_thread_) {
      if (buffer.size() < floats) buffer = AlignedBuffer<float>(floats);
    }
  }
  float* ForThread(int thread) { return per_thread_[static_cast<size_t>(thread)].data(); }

  int64_t Bytes() const {
    int64_t floats = shared_.size();
    for (const AlignedBuffer<float>& buffer : per_thread_) floats += buffer.size();
    return floats * static_cast<int64_t>(sizeof(float));
  }

 private:
  AlignedBuffer<float> shared_;
  std::vector<AlignedBuffer<float>> per_thread_;
};

}  // namespace equitile

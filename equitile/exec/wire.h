// Floats as messages: as they are, or rounded to bf16 on the way.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/base/growing_buffer.h"
#include "equitile/comm/communicator.h"
#include "equitile/tensor/dtype.h"

namespace equitile {

// A message under way.
struct Letter {
  CommRequest request;
  float* to = nullptr;  // received floats; null when sending
  int64_t floats = 0, exact = 0;
  int32_t peer = 0;
  int64_t bytes = 0;
  double posted = 0;      // Now()
  GrowingBuffer rounded;  // bf16 only
  bool done = false;
};

// The last `exact` floats of a message always travel as f32 (log-sum-exp).
class Wire {
 public:
  Wire(Communicator& comm, DType dtype);  // f32 or bf16, else InputError

  Letter Send(const float* floats, int64_t count, int64_t exact, int32_t to, int32_t tag);
  Letter Receive(float* floats, int64_t count, int64_t exact, int32_t from, int32_t tag);
  bool Test(Letter& letter);
  void Wait(Letter& letter);

 private:
  int64_t Bytes(int64_t count, int64_t exact) const;
  GrowingBuffer Rounded(int64_t bytes);
  void Close(Letter& letter);

  Communicator& comm_;
  DType dtype_;
  std::vector<GrowingBuffer> free_;  // of letters that are done
};

}  // namespace equitile

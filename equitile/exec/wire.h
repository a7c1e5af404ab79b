// Messages: bytes as they are, or numbers rounded to bf16 on the way.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/base/growing_buffer.h"
#include "equitile/comm/communicator.h"
#include "equitile/tensor/dtype.h"

namespace equitile {

// What a message holds: f32 numbers that the wire may round, then bytes that must arrive as they
// are (log-sum-exp, and whatever its sender has rounded already).
struct MessageBytes {
  int64_t numbers = 0, exact = 0;
};

// A message under way.
struct Letter {
  CommRequest request;
  std::byte* to = nullptr;  // null when sending
  MessageBytes held;
  int32_t peer = 0;
  int64_t bytes = 0;      // on the wire
  double posted = 0;      // Now()
  GrowingBuffer rounded;  // bf16 only
  bool done = false;
};

class Wire {
 public:
  Wire(Communicator& comm, DType dtype);  // f32 or bf16, else InputError

  Letter Send(const std::byte* data, MessageBytes held, int32_t to, int32_t tag);
  Letter Receive(std::byte* data, MessageBytes held, int32_t from, int32_t tag);
  bool Test(Letter& letter);
  void Wait(Letter& letter);

 private:
  bool Rounds() const { return dtype_ != DType::kF32; }
  Letter NewLetter(MessageBytes held, int32_t peer);
  GrowingBuffer Rounded(int64_t bytes);
  void Close(Letter& letter);

  Communicator& comm_;
  DType dtype_;
  std::vector<GrowingBuffer> free_;  // of letters that are done
};

}  // namespace equitile

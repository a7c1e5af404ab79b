// Messages: bytes as they are, or numbers rounded to 16 bits on the way: to bf16, or in rows with a
// scale each.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/base/growing_buffer.h"
#include "equitile/comm/communicator.h"
#include "equitile/kernel/compute.h"
#include "equitile/plan/predict/traffic.h"
#include "equitile/tensor/dtype.h"

namespace equitile {

// What a message holds: f32 numbers that the wire may round, then bytes that must arrive as they
// are (log-sum-exp, and whatever its sender has rounded already).
struct MessageBytes {
  int64_t numbers = 0, exact = 0;
  int64_t short_row =
      0;  // numbers of a row that travels as integers (kernel/rows/short_rows.h); 0: none
};

// A message under way.
struct Letter {
  CommRequest request;
  std::byte* to = nullptr;  // null when sending
  MessageBytes held;
  int32_t peer = 0;
  int64_t bytes = 0;      // on the wire
  double posted = 0;      // Now()
  GrowingBuffer rounded;  // where the wire rounds
  bool done = false;
};

// What tokens of attention in `compute` weigh, numbers being `dtype` where it is f32.
WireFormat WireFormatOf(int64_t head_dim, DType dtype, Compute compute);

class Wire {
 public:
  Wire(Communicator& comm, DType dtype);  // f32 or bf16, else InputError

  Letter Send(const std::byte* data, MessageBytes held, int32_t to, int32_t tag);
  Letter Receive(std::byte* data, MessageBytes held, int32_t from, int32_t tag);
  bool Test(Letter& letter);
  void Wait(Letter& letter);

 private:
  bool Rounds(const MessageBytes& held) const {
    return dtype_ != DType::kF32 || held.short_row != 0;
  }
  int64_t BytesOfNumbers(const MessageBytes& held) const;  // on the wire
  Letter NewLetter(MessageBytes held, int32_t peer);
  GrowingBuffer Rounded(int64_t bytes);
  void Close(Letter& letter);

  Communicator& comm_;
  DType dtype_;
  std::vector<GrowingBuffer> free_;  // of letters that are done
};

}  // namespace equitile

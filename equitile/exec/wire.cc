#include "equitile/exec/wire.h"

#include <algorithm>
#include <cstring>

#include "equitile/base/error.h"

namespace equitile {

Wire::Wire(Communicator& comm, DType dtype) : comm_(comm), dtype_(dtype) {
  if (dtype != DType::kF32 && dtype != DType::kBF16)
    throw InputError("[exec] numbers on the wire as {}: use f32 or bf16", DTypeName(dtype));
}

GrowingBuffer Wire::Rounded(int64_t bytes) {
  const auto fits = std::find_if(free_.begin(), free_.end(),
                                 [&](const GrowingBuffer& b) { return b.Bytes() >= bytes; });
  if (fits != free_.end()) std::iter_swap(fits, free_.end() - 1);
  GrowingBuffer found;
  if (!free_.empty()) {
    found = std::move(free_.back());
    free_.pop_back();
  }
  found.Get<std::byte>(bytes);
  return found;
}

Letter Wire::NewLetter(MessageBytes held, int32_t peer) {
  Letter letter;
  letter.peer = peer;
  letter.held = held;
  letter.bytes = held.numbers / DTypeBytes(DType::kF32) * DTypeBytes(dtype_) + held.exact;
  letter.posted = comm_.Now();
  if (Rounds()) letter.rounded = Rounded(letter.bytes);
  return letter;
}

Letter Wire::Send(const std::byte* data, MessageBytes held, int32_t to, int32_t tag) {
  Letter letter = NewLetter(held, to);
  if (Rounds()) {
    const auto* numbers = reinterpret_cast<const float*>(data);
    const int64_t count = held.numbers / DTypeBytes(DType::kF32);
    auto* halves = letter.rounded.Data<Bf16>();
    for (int64_t i = 0; i < count; ++i) halves[i] = FromFloat<Bf16>(numbers[i]);
    std::memcpy(halves + count, numbers + count, static_cast<size_t>(held.exact));
    data = letter.rounded.Data<std::byte>();
  }
  letter.request = comm_.Send({data, static_cast<size_t>(letter.bytes)}, to, tag);
  return letter;
}

Letter Wire::Receive(std::byte* data, MessageBytes held, int32_t from, int32_t tag) {
  Letter letter = NewLetter(held, from);
  letter.to = data;
  if (Rounds()) data = letter.rounded.Data<std::byte>();
  letter.request = comm_.Receive({data, static_cast<size_t>(letter.bytes)}, from, tag);
  return letter;
}

bool Wire::Test(Letter& letter) {
  if (!letter.done && comm_.Test(letter.request)) Close(letter);
  return letter.done;
}

void Wire::Wait(Letter& letter) {
  if (letter.done) return;
  comm_.Wait(letter.request);
  Close(letter);
}

void Wire::Close(Letter& letter) {
  letter.done = true;
  if (!Rounds()) return;
  if (letter.to != nullptr) {
    auto* numbers = reinterpret_cast<float*>(letter.to);
    const int64_t count = letter.held.numbers / DTypeBytes(DType::kF32);
    const auto* halves = letter.rounded.Data<Bf16>();
    for (int64_t i = 0; i < count; ++i) numbers[i] = ToFloat(halves[i]);
    std::memcpy(numbers + count, halves + count, static_cast<size_t>(letter.held.exact));
  }
  free_.push_back(std::move(letter.rounded));
}

}  // namespace equitile

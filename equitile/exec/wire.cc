#include "equitile/exec/wire.h"

#include <algorithm>
#include <cstring>

#include "equitile/base/error.h"
#include "equitile/kernel/rows/short_rows.h"
#include "equitile/kernel/rows/strips.h"

namespace equitile {
namespace {

int64_t Numbers(const MessageBytes& held) { return held.numbers / DTypeBytes(DType::kF32); }

void Round(const float* numbers, const MessageBytes& held, std::byte* to) {
  const int64_t count = Numbers(held);
  if (held.short_row != 0) return PackShort(numbers, count / held.short_row, held.short_row, to);
  auto* halves = reinterpret_cast<Bf16*>(to);
  for (int64_t i = 0; i < count; ++i) halves[i] = FromFloat<Bf16>(numbers[i]);
}

void Widen(const std::byte* from, const MessageBytes& held, float* numbers) {
  const int64_t count = Numbers(held);
  if (held.short_row != 0)
    return UnpackShort(from, count / held.short_row, held.short_row, numbers);
  const auto* halves = reinterpret_cast<const Bf16*>(from);
  for (int64_t i = 0; i < count; ++i) numbers[i] = ToFloat(halves[i]);
}

}  // namespace

WireFormat WireFormatOf(int64_t head_dim, DType dtype, Compute compute) {
  WireFormat wire{.head_dim = head_dim, .value_bytes = DTypeBytes(dtype)};
  if (compute != Compute::kF32) {
    wire.token_bytes = StripBytes(head_dim, compute) / kStripTokens;
    wire.out_bytes = ShortRowBytes(head_dim);
  }
  return wire;
}

int64_t Wire::BytesOfNumbers(const MessageBytes& held) const {
  if (held.short_row == 0) return Numbers(held) * DTypeBytes(dtype_);
  return Numbers(held) / held.short_row * ShortRowBytes(held.short_row);
}

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
  letter.bytes = BytesOfNumbers(held) + held.exact;
  letter.posted = comm_.Now();
  if (Rounds(held)) letter.rounded = Rounded(letter.bytes);
  return letter;
}

Letter Wire::Send(const std::byte* data, MessageBytes held, int32_t to, int32_t tag) {
  Letter letter = NewLetter(held, to);
  if (Rounds(held)) {
    std::byte* rounded = letter.rounded.Data<std::byte>();
    Round(reinterpret_cast<const float*>(data), held, rounded);
    std::memcpy(rounded + BytesOfNumbers(held), data + held.numbers,
                static_cast<size_t>(held.exact));
    data = rounded;
  }
  letter.request = comm_.Send({data, static_cast<size_t>(letter.bytes)}, to, tag);
  return letter;
}

Letter Wire::Receive(std::byte* data, MessageBytes held, int32_t from, int32_t tag) {
  Letter letter = NewLetter(held, from);
  letter.to = data;
  if (Rounds(held)) data = letter.rounded.Data<std::byte>();
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
  if (!Rounds(letter.held)) return;
  if (letter.to != nullptr) {
    const std::byte* rounded = letter.rounded.Data<std::byte>();
    Widen(rounded, letter.held, reinterpret_cast<float*>(letter.to));
    std::memcpy(letter.to + letter.held.numbers, rounded + BytesOfNumbers(letter.held),
                static_cast<size_t>(letter.held.exact));
  }
  free_.push_back(std::move(letter.rounded));
}

}  // namespace equitile

#include "equitile/exec/wire.h"

#include <algorithm>
#include <cstring>

#include "equitile/base/error.h"

namespace equitile {

Wire::Wire(Communicator& comm, DType dtype) : comm_(comm), dtype_(dtype) {
  if (dtype != DType::kF32 && dtype != DType::kBF16)
    throw InputError("[exec] numbers on the wire as {}: use f32 or bf16", DTypeName(dtype));
}

int64_t Wire::Bytes(int64_t count, int64_t exact) const {
  return (count - exact) * DTypeBytes(dtype_) + exact * DTypeBytes(DType::kF32);
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

Letter Wire::Send(const float* floats, int64_t count, int64_t exact, int32_t to, int32_t tag) {
  Letter letter;
  letter.peer = to;
  letter.floats = count;
  letter.exact = exact;
  letter.bytes = Bytes(count, exact);
  letter.posted = comm_.Now();
  const auto* data = reinterpret_cast<const std::byte*>(floats);
  if (dtype_ == DType::kBF16) {
    letter.rounded = Rounded(letter.bytes);
    auto* halves = letter.rounded.Data<Bf16>();
    for (int64_t i = 0; i < count - exact; ++i) halves[i] = FromFloat<Bf16>(floats[i]);
    std::memcpy(halves + (count - exact), floats + (count - exact),
                static_cast<size_t>(exact) * sizeof(float));
    data = letter.rounded.Data<std::byte>();
  }
  letter.request = comm_.Send({data, static_cast<size_t>(letter.bytes)}, to, tag);
  return letter;
}

Letter Wire::Receive(float* floats, int64_t count, int64_t exact, int32_t from, int32_t tag) {
  Letter letter;
  letter.peer = from;
  letter.to = floats;
  letter.floats = count;
  letter.exact = exact;
  letter.bytes = Bytes(count, exact);
  letter.posted = comm_.Now();
  auto* data = reinterpret_cast<std::byte*>(floats);
  if (dtype_ == DType::kBF16) {
    letter.rounded = Rounded(letter.bytes);
    data = letter.rounded.Data<std::byte>();
  }
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
  if (dtype_ == DType::kF32) return;
  if (letter.to != nullptr) {
    const auto* halves = letter.rounded.Data<Bf16>();
    const int64_t rounded = letter.floats - letter.exact;
    for (int64_t i = 0; i < rounded; ++i) letter.to[i] = ToFloat(halves[i]);
    std::memcpy(letter.to + rounded, halves + rounded,
                static_cast<size_t>(letter.exact) * sizeof(float));
  }
  free_.push_back(std::move(letter.rounded));
}

}  // namespace equitile

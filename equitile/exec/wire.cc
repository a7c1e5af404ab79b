#include "equitile/exec/wire.h"

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

AlignedBuffer<std::byte> Wire::Rounded(int64_t bytes) {
  for (auto& buffer : free_) {
    if (buffer.size() < bytes) continue;
    std::swap(buffer, free_.back());
    AlignedBuffer<std::byte> found = std::move(free_.back());
    free_.pop_back();
    return found;
  }
  return AlignedBuffer<std::byte>(bytes);
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
    auto* halves = reinterpret_cast<Bf16*>(letter.rounded.data());
    for (int64_t i = 0; i < count - exact; ++i) halves[i] = FromFloat<Bf16>(floats[i]);
    std::memcpy(halves + (count - exact), floats + (count - exact),
                static_cast<size_t>(exact) * sizeof(float));
    data = letter.rounded.data();
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
    data = letter.rounded.data();
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
    const auto* halves = reinterpret_cast<const Bf16*>(letter.rounded.data());
    const int64_t rounded = letter.floats - letter.exact;
    for (int64_t i = 0; i < rounded; ++i) letter.to[i] = ToFloat(halves[i]);
    std::memcpy(letter.to + rounded, halves + rounded,
                static_cast<size_t>(letter.exact) * sizeof(float));
  }
  free_.push_back(std::move(letter.rounded));
}

}  // namespace equitile

// Numbers in and out of the parts of a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/sparsity/source/source_state.h"

namespace equitile {

template <typename Numbers>
void PutNumbers(const Numbers& numbers, std::vector<std::byte>& part) {
  const auto bytes = std::as_bytes(std::span(numbers));
  part.assign(bytes.begin(), bytes.end());
}

// As many as there are. Throws InputError unless the part is there and holds whole ones.
template <typename T>
std::vector<T> TakeNumbers(const SourceState& parts, const std::string& name) {
  const auto found = parts.find(name);
  if (found == parts.end() || found->second.size() % sizeof(T) != 0)
    throw InputError("[search] the checkpoint's '{}' is of another search", name);
  std::vector<T> numbers(found->second.size() / sizeof(T));
  if (!numbers.empty()) std::memcpy(numbers.data(), found->second.data(), found->second.size());
  return numbers;
}

// Throws InputError unless the part is there and holds so many.
template <typename T>
std::vector<T> TakeNumbers(const SourceState& parts, const std::string& name, size_t count) {
  std::vector<T> numbers = TakeNumbers<T>(parts, name);
  if (numbers.size() != count)
    throw InputError("[search] the checkpoint's '{}' is of another search", name);
  return numbers;
}

}  // namespace equitile

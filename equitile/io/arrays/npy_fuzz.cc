// Any bytes as an .npy file: taken or refused, and what is taken has all its elements.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "equitile/base/error.h"
#include "equitile/io/arrays/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace equitile;
  try {
    const NpyHeader header = ParseNpyHeader(std::as_bytes(std::span(data, size)), "fuzz.npy");
    const size_t bytes = static_cast<size_t>(header.Count() * NpyTypeBytes(header.type));
    if (header.data_offset + bytes != size) std::abort();
  } catch (const InputError&) {
  }
  return 0;
}

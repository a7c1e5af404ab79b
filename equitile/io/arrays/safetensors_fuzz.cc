// Any bytes as a safetensors file: taken or refused, never anything else; and what is taken can be
// read to its last byte.
#include <cstdint>
#include <span>

#include "equitile/base/error.h"
#include "equitile/io/arrays/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace equitile;
  try {
    const SafetensorsHeader header =
        ParseSafetensors(std::as_bytes(std::span(data, size)), "fuzz.safetensors");
    for (const StoredTensor& tensor : header.tensors) {
      if (DTypeOf(tensor.type)) {
        tensor.Floats();
        tensor.CheckFinite();
      }
      if (tensor.type == StoredType::kI64) tensor.Integers();
    }
  } catch (const InputError&) {
  }
  return 0;
}

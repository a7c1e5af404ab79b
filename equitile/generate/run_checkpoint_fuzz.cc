// Any safetensors file as a run's checkpoint: taken or refused, and what is taken has as many
// latents as its shape says. The checksum is made right, else nothing would get past it.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "equitile/base/error.h"
#include "equitile/generate/run_checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace equitile;
  try {
    SafetensorsHeader file = ParseSafetensors(std::as_bytes(std::span(data, size)), "fuzz.ckpt");
    file.metadata["checksum"] = RunChecksum(file);
    const RunCheckpoint checkpoint = ParseRunCheckpoint(file, "fuzz.ckpt");
    if (checkpoint.shape.Elements() != std::ssize(checkpoint.state.latents)) std::abort();
    CheckSameRun("fuzz.ckpt", checkpoint, {{"prompt", "a star"}, {"steps", "2"}});
  } catch (const InputError&) {
  }
  return 0;
}

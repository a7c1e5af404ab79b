// The noise that a video starts from. "torch" gives what torch.randn on a CPU generator gives for
// the same seed, so that a diffusers run can be repeated; "philox" is our own, by index.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace equitile {

enum class NoiseKind : uint8_t { kTorch, kPhilox };

std::string_view NoiseKindName(NoiseKind kind);   // "torch", "philox"
NoiseKind ParseNoiseKind(std::string_view name);  // throws InputError

// Mean 0, variance 1; `out` in row-major order of the tensor, whose shape does not matter. Bits may
// differ between C libraries (log, sin, cos): ranks take them from one rank.
void FillNoise(NoiseKind kind, uint64_t seed, std::span<float> out);

}  // namespace equitile

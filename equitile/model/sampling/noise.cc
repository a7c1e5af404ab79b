#include "equitile/model/sampling/noise.h"

#include <cmath>
#include <numbers>
#include <random>

#include "equitile/base/error.h"
#include "equitile/base/rng.h"

namespace equitile {
namespace {

constexpr size_t kBlock = 16;  // torch's vectorised path works on blocks of two vectors of eight

void FillUniform(std::mt19937& generator, std::span<float> out) {
  for (float& value : out) value = static_cast<float>(generator() & 0xFFFFFF) * 0x1p-24f;
}

// Box-Muller on sixteen uniforms in place; all in f32, the angle too.
void TransformBlock(std::span<float> block) {
  constexpr float kTwoPi = static_cast<float>(2.0 * std::numbers::pi);
  for (size_t j = 0; j < kBlock / 2; ++j) {
    const float radius = std::sqrt(-2.0f * std::log(1.0f - block[j]));
    const float angle = kTwoPi * block[j + kBlock / 2];
    block[j] = radius * std::cos(angle);
    block[j + kBlock / 2] = radius * std::sin(angle);
  }
}

// Fewer than one block: torch's scalar path, in double.
void FillFew(std::mt19937& generator, std::span<float> out) {
  const auto uniform = [&] {
    const uint64_t high = generator();
    const uint64_t bits = high << 32 | generator();
    return static_cast<double>(bits & ((uint64_t{1} << 53) - 1)) * 0x1p-53;
  };
  for (size_t i = 0; i < out.size(); i += 2) {
    const double u1 = uniform(), u2 = uniform();
    const double radius = std::sqrt(-2.0 * std::log1p(-u2));
    const double angle = 2.0 * std::numbers::pi * u1;
    out[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < out.size()) out[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
}

void FillTorch(uint64_t seed, std::span<float> out) {
  std::mt19937 generator(static_cast<uint32_t>(seed));  // torch seeds it so, too
  if (out.size() < kBlock) {
    FillFew(generator, out);
    return;
  }
  FillUniform(generator, out);
  for (size_t i = 0; i + kBlock <= out.size(); i += kBlock) TransformBlock(out.subspan(i, kBlock));
  if (out.size() % kBlock != 0) {
    // The last sixteen anew, over what the blocks had left there.
    FillUniform(generator, out.last(kBlock));
    TransformBlock(out.last(kBlock));
  }
}

}  // namespace

std::string_view NoiseKindName(NoiseKind kind) {
  return kind == NoiseKind::kTorch ? "torch" : "philox";
}

NoiseKind ParseNoiseKind(std::string_view name) {
  for (NoiseKind kind : {NoiseKind::kTorch, NoiseKind::kPhilox}) {
    if (name == NoiseKindName(kind)) return kind;
  }
  throw InputError("[model] rng '{}': unknown; use torch or philox", name);
}

void FillNoise(NoiseKind kind, uint64_t seed, std::span<float> out) {
  if (kind == NoiseKind::kTorch) return FillTorch(seed, out);
  const Rng rng(seed);
  for (size_t i = 0; i < out.size(); ++i) out[i] = rng.NormalAt(i);
}

}  // namespace equitile

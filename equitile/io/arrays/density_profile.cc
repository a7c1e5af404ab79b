#include "equitile/io/arrays/density_profile.h"

#include <cmath>
#include <cstring>
#include <string>

#include "equitile/base/error.h"
#include "equitile/io/arrays/npy.h"
#include "equitile/tensor/dtype.h"

namespace equitile {
namespace {

float ElementOf(const NpyArray& array, int64_t index) {
  const std::byte* at = array.data.data() + index * NpyTypeBytes(array.type);
  if (array.type == NpyType::kFloat16) {
    F16 half;
    std::memcpy(&half, at, sizeof(half));
    return ToFloat(half);
  }
  float value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

}  // namespace

std::span<const int64_t> DensityProfile::HeadsAt(int64_t step, int64_t layer) const {
  return std::span(density_ppm)
      .subspan(static_cast<size_t>((step * layers + layer) * heads), static_cast<size_t>(heads));
}

DensityProfile ReadDensityProfile(const std::filesystem::path& path) {
  const NpyArray array = ReadNpy(path);
  const bool is_float = array.type == NpyType::kFloat16 || array.type == NpyType::kFloat32;
  if (!is_float || array.shape.size() != 3 || array.data.empty()) {
    throw InputError(
        "[io] {}: {} of shape ({}); head densities are float16 or float32, [steps, layers, heads]",
        path.string(), NpyTypeName(array.type), fmt::join(array.shape, ", "));
  }
  DensityProfile profile{.steps = array.shape[0],
                         .layers = array.shape[1],
                         .heads = array.shape[2],
                         .density_ppm = {}};
  const int64_t count = profile.steps * profile.layers * profile.heads;
  for (int64_t i = 0; i < count; ++i) {
    const float density = ElementOf(array, i);
    if (!(density >= 0 && density <= 1)) {
      throw InputError("[io] {}: step {}, layer {}, head {} holds {}; a density is from 0 to 1",
                       path.string(), i / profile.heads / profile.layers,
                       i / profile.heads % profile.layers, i % profile.heads, density);
    }
    profile.density_ppm.push_back(std::llround(1e6 * static_cast<double>(density)));
  }
  return profile;
}

}  // namespace equitile

// How dense the heads of a model are, step by step, as measured by others: an .npy of floats.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace equitile {

struct DensityProfile {
  int64_t steps = 0, layers = 0, heads = 0;
  std::vector<int64_t> density_ppm;  // [steps][layers][heads], in millionths

  std::span<const int64_t> HeadsAt(int64_t step, int64_t layer) const;  // both counted from 0
};

// float16 or float32, [steps, layers, heads], from 0 to 1. Throws InputError for anything else.
DensityProfile ReadDensityProfile(const std::filesystem::path& path);

}  // namespace equitile

#include "equitile/io/arrays/density_profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/io/arrays/npy.h"
#include "equitile/tensor/dtype.h"
#include "tests/in_repository.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

template <typename T>
void Write(const std::filesystem::path& path, NpyType type, std::vector<int64_t> shape,
           const std::vector<T>& values) {
  WriteNpy(path, type, shape, std::as_bytes(std::span(values)));
}

TEST(DensityProfile, ReadsBothFloats) {
  const TempFolder folder;
  const std::vector<float> values = {0, 0.25, 0.5, 1, 0.125, 0.75, 0.001f, 0.0625};
  std::vector<F16> halves;
  for (float value : values) halves.push_back(FromFloat<F16>(value));
  Write(folder / "a.npy", NpyType::kFloat32, {2, 2, 2}, values);
  Write(folder / "b.npy", NpyType::kFloat16, {2, 2, 2}, halves);
  for (const char* name : {"a.npy", "b.npy"}) {
    const DensityProfile profile = ReadDensityProfile(folder / name);
    EXPECT_EQ(profile.steps, 2);
    EXPECT_EQ(profile.layers, 2);
    EXPECT_EQ(profile.HeadsAt(0, 1)[0], 500'000);
    EXPECT_EQ(profile.HeadsAt(0, 1)[1], 1'000'000);
    EXPECT_EQ(profile.HeadsAt(1, 0)[0], 125'000);
    EXPECT_NEAR(static_cast<double>(profile.HeadsAt(1, 1)[0]), 1000, 1);
  }
}

TEST(DensityProfile, RefusesOthers) {
  const TempFolder folder;
  const auto refused = [&] { EXPECT_THROW(ReadDensityProfile(folder / "a.npy"), InputError); };
  Write<uint8_t>(folder / "a.npy", NpyType::kUint8, {1, 1, 2}, {0, 1});
  refused();
  Write<float>(folder / "a.npy", NpyType::kFloat32, {2}, {0, 1});
  refused();
  Write<float>(folder / "a.npy", NpyType::kFloat32, {1, 0, 2}, {});
  refused();
  for (float bad : {-0.1f, 1.5f, NAN, INFINITY}) {
    Write<float>(folder / "a.npy", NpyType::kFloat32, {1, 1, 2}, {0, bad});
    refused();
  }
  EXPECT_THROW(ReadDensityProfile(folder / "missing.npy"), InputError);
}

// As published: the mean after the tenth step.
TEST(DensityProfile, ReadsTheStoredProfile) {
  const DensityProfile profile =
      ReadDensityProfile(InRepository("models/profiles/wan21_1.3b.density.npy"));
  EXPECT_EQ(profile.steps, 50);
  EXPECT_EQ(profile.layers, 30);
  EXPECT_EQ(profile.heads, 12);
  double sum = 0;
  for (int64_t step = 10; step < 50; ++step)
    for (int64_t layer = 0; layer < 30; ++layer)
      for (int64_t ppm : profile.HeadsAt(step, layer)) sum += 1e-6 * static_cast<double>(ppm);
  EXPECT_NEAR(sum / (40 * 30 * 12), 0.127, 0.001);
}

}  // namespace
}  // namespace equitile

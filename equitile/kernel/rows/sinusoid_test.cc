#include "equitile/kernel/rows/sinusoid.h"

#include <gtest/gtest.h>

#include <vector>

namespace equitile {
namespace {

// Values of diffusers at t = 999.
TEST(Sinusoid, CosinesFirst) {
  std::vector<float> u(256);
  TimestepSinusoid(999.0f, u);
  EXPECT_NEAR(u[0], .99964988f, 1e-7f);
  EXPECT_NEAR(u[128], -.02646075f, 1e-7f);
  EXPECT_NEAR(u[64], -.84446985f, 1e-6f);
  EXPECT_NEAR(u[192], -.5356032f, 1e-6f);
  EXPECT_NEAR(u[127], .9942431f, 1e-7f);
  EXPECT_NEAR(u[255], .1071472f, 1e-7f);
}

TEST(Sinusoid, ZeroTimestep) {
  std::vector<float> u(6);
  TimestepSinusoid(0.0f, u);
  EXPECT_EQ(u, (std::vector<float>{1, 1, 1, 0, 0, 0}));
}

}  // namespace
}  // namespace equitile

// Runs a test once per SIMD target of this binary, on that target and no other.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "equitile/kernel/target.h"

namespace equitile::testing {

// Forces the target for one test and gives the machine's own choice back afterwards. A target that
// the machine lacks is skipped by name; one that is forced but does not run is a failure.
class TargetTest : public ::testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!TargetSupported(GetParam())) {
      GTEST_SKIP() << "this machine lacks " << TargetName(GetParam());
    }
    SetTarget(GetParam());
    ASSERT_EQ(ActiveTarget(), GetParam());
  }
  void TearDown() override { SetTarget(own_target_); }

  // Integers multiplied in every way that there is here (target.h).
  template <class Check>
  static void WithAllProducts(const Check& check) {
    static constexpr const char* kWays[] = {"as pairs", "as VNNI multiplies", "as AMX multiplies"};
    for (const IntegerProducts products :
         {IntegerProducts::kPairs, IntegerProducts::kVnni, IntegerProducts::kAmx}) {
      if (!ProductsSupported(products)) continue;
      SCOPED_TRACE(kWays[static_cast<size_t>(products)]);
      SetProducts(products);
      check();
    }
    SetProducts(IntegerProducts::kPairs);
  }

 private:
  const Target own_target_ = ActiveTarget();
};

inline std::string TargetTestName(const ::testing::TestParamInfo<Target>& info) {
  return std::string(TargetName(info.param));
}

#define EQUITILE_TEST_ON_ALL_TARGETS(suite)                                               \
  INSTANTIATE_TEST_SUITE_P(On, suite, ::testing::ValuesIn(::equitile::CompiledTargets()), \
                           ::equitile::testing::TargetTestName)

}  // namespace equitile::testing

#include "equitile/kernel/target.h"

#include <cstdlib>
#include <string>

#include "equitile/base/error.h"
#include "equitile/kernel/target_testing.h"

namespace equitile {
namespace {

class TargetForcing : public testing::TargetTest {};

TEST_P(TargetForcing, IsTheOneThatRuns) { EXPECT_EQ(ActiveTarget(), GetParam()); }

TEST_P(TargetForcing, LeavesTheOthersAvailable) {
  for (const Target other : CompiledTargets()) {
    if (!TargetSupported(other)) continue;
    SetTarget(other);
    EXPECT_EQ(ActiveTarget(), other) << "after " << TargetName(GetParam());
  }
}

TEST_P(TargetForcing, ByEnvironment) {
  const Target before = CompiledTargets().front();
  SetTarget(before);
  ASSERT_EQ(setenv("EQUITILE_TARGET", std::string(TargetName(GetParam())).c_str(), 1), 0);
  ApplyTargetFromEnvironment();
  EXPECT_EQ(ActiveTarget(), GetParam());
  ASSERT_EQ(setenv("EQUITILE_TARGET", "", 1), 0);  // empty: as if not there
  SetTarget(before);
  ApplyTargetFromEnvironment();
  EXPECT_EQ(ActiveTarget(), before);
  ASSERT_EQ(unsetenv("EQUITILE_TARGET"), 0);
}

TEST_P(TargetForcing, AnyProductsButThoseThatAvx512Lacks) {
  for (const IntegerProducts products :
       {IntegerProducts::kPairs, IntegerProducts::kVnni, IntegerProducts::kAmx}) {
    if (ProductsSupported(products)) {
      SetProducts(products);
      EXPECT_EQ(ActiveProducts(), products);
    } else {
      EXPECT_EQ(GetParam(), Target::kAvx512);
      EXPECT_THROW(SetProducts(products), InputError);
    }
  }
}

EQUITILE_TEST_ON_ALL_TARGETS(TargetForcing);

// "avx512vnni" and the like insist; what is there is taken by itself.
class ProductsForcing : public ::testing::TestWithParam<std::string> {
 protected:
  void TearDown() override {
    unsetenv("EQUITILE_TARGET");
    SetTarget(own_target_);
  }
  const Target own_target_ = ActiveTarget();
};

TEST_P(ProductsForcing, ByEnvironment) {
  ASSERT_EQ(setenv("EQUITILE_TARGET", GetParam().c_str(), 1), 0);
  try {
    ApplyTargetFromEnvironment();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("not supported"), std::string::npos);
    GTEST_SKIP() << "this machine lacks " << GetParam();
  }
  EXPECT_EQ(ActiveTargetName(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Of, ProductsForcing,
                         ::testing::Values("avx512", "avx512vnni", "avx512amx"),
                         [](const auto& info) { return info.param; });

TEST(Target, NamesParseBack) {
  for (const Target target :
       {Target::kPortable, Target::kSse4, Target::kAvx2, Target::kAvx512, Target::kNeon}) {
    EXPECT_EQ(ParseTarget(TargetName(target)), target);
  }
}

TEST(Target, PortableIsAlwaysThere) {
  const auto compiled = CompiledTargets();
  ASSERT_FALSE(compiled.empty());
  EXPECT_EQ(compiled.front(), Target::kPortable);
  EXPECT_TRUE(TargetSupported(Target::kPortable));
}

TEST(Target, UnknownNameSaysWhatIsKnown) {
  for (const char* name : {"", "AVX2", "avx", "avx1024", "avx2 "}) {
    try {
      ParseTarget(name);
      ADD_FAILURE() << "'" << name << "' was taken";
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("avx512, avx2, sse4 or portable"),
                std::string::npos);
    }
  }
}

TEST(Target, UnknownInTheEnvironment) {
  const Target before = ActiveTarget();
  ASSERT_EQ(setenv("EQUITILE_TARGET", "sse9", 1), 0);
  EXPECT_THROW(ApplyTargetFromEnvironment(), InputError);
  ASSERT_EQ(unsetenv("EQUITILE_TARGET"), 0);
  EXPECT_EQ(ActiveTarget(), before);
}

TEST(Target, WhatTheMachineOrTheBuildLacksIsRefused) {
  const Target before = ActiveTarget();
  int refused = 0;
  for (const Target target :
       {Target::kPortable, Target::kSse4, Target::kAvx2, Target::kAvx512, Target::kNeon}) {
    if (TargetSupported(target)) continue;
    EXPECT_THROW(SetTarget(target), InputError) << TargetName(target);
    EXPECT_EQ(ActiveTarget(), before);
    ++refused;
  }
  EXPECT_GT(refused, 0);  // no machine is both x86 and arm
}

}  // namespace
}  // namespace equitile

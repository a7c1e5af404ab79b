#include "equitile/base/function_ref.h"

#include <gtest/gtest.h>

#include <memory>

namespace equitile {
namespace {

int Twice(FunctionRef<int(int)> f, int x) { return f(f(x)); }

TEST(FunctionRef, CallsWhatItRefersTo) {
  int calls = 0;
  auto add = [&](int x) {
    ++calls;
    return x + 5;
  };
  EXPECT_EQ(Twice(add, 1), 11);
  EXPECT_EQ(Twice([](int x) { return 3 * x; }, 2), 18);
  EXPECT_EQ(calls, 2);
}

TEST(FunctionRef, ConstAndPointersAndMoveOnlyArguments) {
  const auto negate = [](int x) { return -x; };
  EXPECT_EQ(Twice(negate, 4), 4);
  int (*square)(int) = [](int x) { return x * x; };
  EXPECT_EQ(Twice(square, 3), 81);
  auto take = [](std::unique_ptr<int> p) { return *p; };
  FunctionRef<int(std::unique_ptr<int>)> ref = take;
  EXPECT_EQ(ref(std::make_unique<int>(8)), 8);
}

TEST(FunctionRef, EmptyIsFalse) {
  FunctionRef<void()> none;
  EXPECT_FALSE(none);
  EXPECT_FALSE(FunctionRef<void()>(nullptr));
  auto f = [] {};
  EXPECT_TRUE(FunctionRef<void()>(f));
}

}  // namespace
}  // namespace equitile

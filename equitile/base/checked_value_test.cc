#include "equitile/base/checked_value.h"

#include <gtest/gtest.h>

#include "tests/refusal.h"

namespace equitile {
namespace {

TEST(CheckedValue, SaysWhatWouldBeRight) {
  EXPECT_EQ(ParseNumber("--n", "-3", Bounds<int64_t>{}), -3);
  EXPECT_EQ(ParseNumber("--x", "2.5", Bounds<double>{.min = 0}), 2.5);
  const Bounds<int64_t> small{.min = 1, .max = 8};
  for (const char* text : {"", "x", "9", "0", "1.5", "1 ", "99999999999999999999"}) {
    EXPECT_NE(Refusal([&] { ParseNumber("--n", text, small); }).find("a whole number from 1 to 8"),
              std::string::npos)
        << text;
  }
  for (const char* text : {"inf", "nan", "1e999", "1,5"}) {
    EXPECT_NE(Refusal([&] { ParseNumber("--x", text, Bounds<double>{}); }).find("a number"),
              std::string::npos)
        << text;
  }
  EXPECT_EQ(Refusal([] { ParseChoice("--a", "z", {"x", "y"}); }), "--a z: must be x or y");
}

TEST(CheckedValue, NearestWord) {
  const std::vector<std::string> words = {"steps", "seed", "fps"};
  EXPECT_EQ(NearestWord("step", words), "steps");
  EXPECT_EQ(NearestWord("sed", words), "seed");
  EXPECT_EQ(NearestWord("something else", words), "steps");
  EXPECT_EQ(NearestWord("something else", words, 3), "");
  EXPECT_EQ(NearestWord("sted", {"step", "seed"}, 1), "step");  // the first of two
  EXPECT_EQ(NearestWord("x", {}), "");
}

}  // namespace
}  // namespace equitile

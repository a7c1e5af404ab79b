#include "apps/cli/wrapped_text.h"

#include <gtest/gtest.h>

namespace equitile {
namespace {

using Lines = std::vector<std::string>;

TEST(WrappedText, BreaksBetweenWords) {
  EXPECT_EQ(WrappedLines("", 5), Lines{""});
  EXPECT_EQ(WrappedLines("one two three", 7), (Lines{"one two", "three"}));
  EXPECT_EQ(WrappedLines("one two three", 6), (Lines{"one", "two", "three"}));
  EXPECT_EQ(WrappedLines("a ρ×ρ b", 5), (Lines{"a ρ×ρ", "b"}));
  EXPECT_EQ(WrappedLines("a longer-than-that b", 4), (Lines{"a", "longer-than-that", "b"}));
  EXPECT_EQ(WrappedLines("one\ntwo three", 20), (Lines{"one", "two three"}));
}

}  // namespace
}  // namespace equitile

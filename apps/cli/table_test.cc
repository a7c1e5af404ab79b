#include "apps/cli/table.h"

#include <gtest/gtest.h>

#include <cmath>

namespace equitile {
namespace {

Table Sample() {
  Table table({{"planner"}, {"rho"}, {"moved_blocks"}, {"seed", false}});
  table.Add({"ring", Cell(1.5625, 3), 7, 1});
  table.Add({"none", Cell(std::nan(""), 3), 0, 1});
  table.Add({"fractional", Cell(1.0, 3), 1234, 1});
  return table;
}

TEST(Table, AlignsNumbersRightAndWordsLeft) {
  EXPECT_EQ(Sample().ToText(Terminal{}),
            "planner       rho  moved blocks\n"
            "ring        1.562             7\n"
            "none          nan             0\n"
            "fractional  1.000          1234\n");
}

TEST(Table, CountsLettersNotBytes) {
  Table table({{"ρ"}, {"n"}});
  table.Add({"é", 1});
  EXPECT_EQ(table.ToText(Terminal{}), "ρ  n\né  1\n");
}

TEST(Table, SortsBestFirstAndWhatIsNoNumberLast) {
  Table table = Sample();
  table.SortBy("rho", Best::kSmallest);
  EXPECT_EQ(table.ToJson()[0]["planner"], "fractional");
  EXPECT_EQ(table.ToJson()[2]["planner"], "none");
  table.SortBy("rho", Best::kLargest);
  EXPECT_EQ(table.ToJson()[0]["planner"], "ring");
  EXPECT_EQ(table.ToJson()[2]["planner"], "none");
}

TEST(Table, JsonKeepsPrecisionOrderAndHiddenColumns) {
  EXPECT_EQ(Sample().ToJson()[0].dump(),
            R"({"planner":"ring","rho":1.5625,"moved_blocks":7,"seed":1})");
  EXPECT_TRUE(Sample().ToJson()[1]["rho"].is_null());
}

TEST(Table, OneRowIsAnObjectNoneAnArray) {
  Table table({{"x"}});
  EXPECT_EQ(table.ToJson().dump(), "[]");
  table.Add({1});
  EXPECT_EQ(table.ToJson().dump(), R"({"x":1})");
}

TEST(Table, ColorsOnlyWhereTheTerminalShowsThem) {
  EXPECT_EQ(Sample().ToText(Terminal{}).find('\x1b'), std::string::npos);
  EXPECT_NE(Sample().ToText(Terminal{.color = true}).find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace equitile

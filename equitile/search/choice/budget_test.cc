#include "equitile/search/choice/budget.h"

#include <gtest/gtest.h>

#include <limits>

#include "equitile/base/rng.h"

namespace equitile {
namespace {

using Kind = BudgetTarget::Kind;

// Random options, dense first: more seconds than any other, without error.
std::vector<BudgetItem> RandomItems(uint64_t seed, size_t count, size_t options) {
  Rng rng(seed);
  std::vector<BudgetItem> items(count);
  for (size_t i = 0; i < count; ++i) {
    items[i].layer = i / 2;
    items[i].options.push_back({.error = 0, .seconds = 1, .blocks = 100});
    for (size_t option = 1; option < options; ++option) {
      const double seconds = rng.Uniform();
      items[i].options.push_back(
          {.error = rng.Uniform(), .seconds = seconds, .blocks = 100 * seconds});
    }
  }
  return items;
}

BudgetPoint TotalOf(const std::vector<BudgetItem>& items, const std::vector<size_t>& options) {
  BudgetPoint total;
  for (size_t i = 0; i < items.size(); ++i) {
    const BudgetOption& option = items[i].options[options[i]];
    total.error += option.error;
    total.seconds += option.seconds;
    total.blocks += option.blocks;
  }
  return total;
}

// The least error of all choices that take at most so many seconds.
double LeastError(const std::vector<BudgetItem>& items, double seconds) {
  const size_t options = items.front().options.size();
  double least = std::numeric_limits<double>::infinity();
  std::vector<size_t> choice(items.size(), 0);
  while (true) {
    const BudgetPoint total = TotalOf(items, choice);
    if (total.seconds <= seconds + 1e-12) least = std::min(least, total.error);
    size_t digit = 0;
    while (digit < choice.size() && ++choice[digit] == options) choice[digit++] = 0;
    if (digit == choice.size()) return least;
  }
}

TEST(Budget, GreedyIsAsGoodAsExhaustiveSearch) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<BudgetItem> items = RandomItems(seed, 4, 5);
    const BudgetChoice all = SpendBudget(items, {Kind::kSeconds, 0});
    EXPECT_FALSE(all.reached);
    ASSERT_GT(all.curve.size(), 4u);
    for (const BudgetPoint& point : all.curve) {
      EXPECT_NEAR(point.error, LeastError(items, point.seconds), 1e-9) << "seed " << seed;
      // Stopping there gives that point.
      const BudgetChoice there = SpendBudget(items, {Kind::kSeconds, point.seconds + 1e-9});
      EXPECT_NEAR(there.totals().error, point.error, 1e-9);
      EXPECT_NEAR(TotalOf(items, there.options).seconds, there.totals().seconds, 1e-9);
      EXPECT_TRUE(there.reached);
    }
  }
}

TEST(Budget, KeepsToItsTarget) {
  const std::vector<BudgetItem> items = RandomItems(7, 12, 6);
  for (double error : {0.0, 0.1, 0.5, 2.0}) {
    const BudgetChoice choice = SpendBudget(items, {Kind::kError, error});
    EXPECT_LE(TotalOf(items, choice.options).error, error + 1e-12);
    EXPECT_TRUE(choice.reached);
  }
  const BudgetChoice blocks = SpendBudget(items, {Kind::kBlocks, 600});
  EXPECT_LE(TotalOf(items, blocks.options).blocks, 600 + 1e-9);
  ASSERT_GE(blocks.curve.size(), 2u);
  EXPECT_GT(blocks.curve[blocks.curve.size() - 2].blocks, 600);  // and no further than it must
  EXPECT_EQ(SpendBudget(items, {Kind::kBlocks, 1e9}).options, std::vector<size_t>(12, 0));
}

// A layer of two items takes as long as the longer of them: shortening the shorter one alone saves
// nothing, however cheap it is.
TEST(Budget, SecondsOfALayerDecideWhatIsWorthSaving) {
  std::vector<BudgetItem> items(2);
  items[0].options = {{0, 10, 10}, {0.5, 4, 4}};
  items[1].options = {{0, 5, 5}, {0.01, 1, 1}};
  const LayerSeconds longest = [&](size_t, std::span<const size_t> options) {
    return std::max(items[0].options[options[0]].seconds, items[1].options[options[1]].seconds);
  };
  EXPECT_EQ(SpendBudget(items, {Kind::kError, 0.3}).options, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(SpendBudget(items, {Kind::kSeconds, 5}, longest).options, (std::vector<size_t>{1, 0}));
  const BudgetChoice both = SpendBudget(items, {Kind::kSeconds, 4}, longest);
  EXPECT_EQ(both.options, (std::vector<size_t>{1, 1}));
  EXPECT_DOUBLE_EQ(both.totals().seconds, 4);
}

}  // namespace
}  // namespace equitile

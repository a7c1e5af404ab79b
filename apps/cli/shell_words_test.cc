#include "apps/cli/shell_words.h"

#include <gtest/gtest.h>

#include "equitile/base/error.h"

namespace equitile {
namespace {

using Words = std::vector<std::string>;

TEST(ShellWords, SplitsAsAShellDoes) {
  EXPECT_EQ(SplitWords(""), Words{});
  EXPECT_EQ(SplitWords("  \t "), Words{});
  EXPECT_EQ(SplitWords("--steps  5 -s\t7 "), (Words{"--steps", "5", "-s", "7"}));
  EXPECT_EQ(SplitWords("-n 'a \"b\\' \"c 'd\" e\\ f ''"),
            (Words{"-n", "a \"b\\", "c 'd", "e f", ""}));
  EXPECT_THROW(SplitWords("-n 'a"), InputError);
}

TEST(ShellWords, ReadBackWhatWasQuoted) {
  const Words words = {"plain", "", "a b", "it's", "\"", "\\", "*", "$HOME", "'", "ü\n"};
  std::string line;
  for (const std::string& word : words) line += QuotedWord(word) + " ";
  EXPECT_EQ(SplitWords(line), words);
}

}  // namespace
}  // namespace equitile

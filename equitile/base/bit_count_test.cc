#include "equitile/base/bit_count.h"

#include <gtest/gtest.h>

#include <vector>

namespace equitile {
namespace {

TEST(BitCount, CountsEveryBitOfARow) {
  for (int64_t row_words : {1, 2, 3, 19}) {
    const int64_t rows = 7;
    std::vector<uint64_t> words(static_cast<size_t>(rows * row_words));
    uint64_t state = 1;
    for (uint64_t& word : words) word = state = state * 6364136223846793005u + 1442695040888963407u;
    const int64_t first = row_words / 3, masked_words = row_words - first;
    std::vector<uint64_t> mask(static_cast<size_t>(masked_words), 0xff00000000000001);
    std::vector<int32_t> all(static_cast<size_t>(rows)), masked(static_cast<size_t>(rows));
    CountBitsOfRows(words.data(), rows, row_words, all.data());
    CountMaskedBitsOfRows(words.data(), rows, row_words, mask.data(), first, masked_words,
                          masked.data());
    for (int64_t i = 0; i < rows; ++i) {
      int32_t expected = 0, expected_masked = 0;
      for (int64_t b = 0; b < row_words * 64; ++b) {
        const int32_t bit = (words[static_cast<size_t>(i * row_words + b / 64)] >> (b % 64)) & 1;
        expected += bit;
        if (b / 64 >= first && (b % 64 == 0 || b % 64 >= 56)) expected_masked += bit;
      }
      EXPECT_EQ(all[static_cast<size_t>(i)], expected);
      EXPECT_EQ(masked[static_cast<size_t>(i)], expected_masked);
    }
  }
}

}  // namespace
}  // namespace equitile

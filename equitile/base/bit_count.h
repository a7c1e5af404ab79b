// Counting set bits of many words. Separate because the baseline x86-64 target lacks the popcnt
// instruction that every machine has: chosen at run time, it is three to six times faster than what
// compilers make of std::popcount without it.
#pragma once

#include <cstdint>

namespace equitile {

// counts[i] = set bits of words[i*row_words .. (i+1)*row_words), i < rows.
void CountBitsOfRows(const uint64_t* words, int64_t rows, int64_t row_words, int32_t* counts);

// counts[i] = set bits of row i in words [first_word, first_word + mask_words) that are also set in
// `mask`.
void CountMaskedBitsOfRows(const uint64_t* words, int64_t rows, int64_t row_words,
                           const uint64_t* mask, int64_t first_word, int64_t mask_words,
                           int32_t* counts);

}  // namespace equitile

#include "equitile/base/bit_count.h"

#include <bit>

namespace equitile {
namespace {

// The same loops compiled with and without the instruction.
#define EQ_BIT_COUNT_LOOPS(suffix, attribute)                                                     \
  attribute void Count##suffix(const uint64_t* words, int64_t rows, int64_t row_words,            \
                               int32_t* counts) {                                                 \
    for (int64_t i = 0; i < rows; ++i, words += row_words) {                                      \
      int64_t count = 0;                                                                          \
      for (int64_t w = 0; w < row_words; ++w) count += std::popcount(words[w]);                   \
      counts[i] = static_cast<int32_t>(count);                                                    \
    }                                                                                             \
  }                                                                                               \
  attribute void CountMasked##suffix(const uint64_t* words, int64_t rows, int64_t row_words,      \
                                     const uint64_t* mask, int64_t mask_words, int32_t* counts) { \
    for (int64_t i = 0; i < rows; ++i, words += row_words) {                                      \
      int64_t count = 0;                                                                          \
      for (int64_t w = 0; w < mask_words; ++w) count += std::popcount(words[w] & mask[w]);        \
      counts[i] = static_cast<int32_t>(count);                                                    \
    }                                                                                             \
  }

EQ_BIT_COUNT_LOOPS(Portable, )
#if defined(__x86_64__)
EQ_BIT_COUNT_LOOPS(Popcnt, __attribute__((target("popcnt"))))
const bool kHasPopcnt = __builtin_cpu_supports("popcnt");
#endif

}  // namespace

void CountBitsOfRows(const uint64_t* words, int64_t rows, int64_t row_words, int32_t* counts) {
#if defined(__x86_64__)
  if (kHasPopcnt) return CountPopcnt(words, rows, row_words, counts);
#endif
  CountPortable(words, rows, row_words, counts);
}

void CountMaskedBitsOfRows(const uint64_t* words, int64_t rows, int64_t row_words,
                           const uint64_t* mask, int64_t first_word, int64_t mask_words,
                           int32_t* counts) {
#if defined(__x86_64__)
  if (kHasPopcnt)
    return CountMaskedPopcnt(words + first_word, rows, row_words, mask, mask_words, counts);
#endif
  CountMaskedPortable(words + first_word, rows, row_words, mask, mask_words, counts);
}

}  // namespace equitile

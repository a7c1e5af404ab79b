// Numbers and words as people write them, in flags and in files: checked, and where they cannot be
// used the message says what would be right.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace equitile {

// Both ends allowed.
template <typename Number>
struct Bounds {
  Number min = std::numeric_limits<Number>::lowest();
  Number max = std::numeric_limits<Number>::max();
};

// `what` is how messages call the value: "--steps 0: must be a whole number from 1 to 1000". All
// throw InputError; numbers must be finite.
int64_t ParseNumber(std::string_view what, std::string_view text, Bounds<int64_t> bounds);
double ParseNumber(std::string_view what, std::string_view text, Bounds<double> bounds);
std::string ParseChoice(std::string_view what, std::string_view text,
                        const std::vector<std::string>& choices);

// The word that takes the fewest changes of a letter to become `wanted`, within `limit` of them;
// "" where there is none.
std::string NearestWord(std::string_view wanted, const std::vector<std::string>& words,
                        size_t limit = std::numeric_limits<size_t>::max());

}  // namespace equitile

// Durations as people say them.
#pragma once

#include <string>

namespace equitile {

// "0.04 s", "1.8 s", "95 s", "2 min 20 s", "3 h 5 min", "3 d 8 h".
std::string DurationText(double seconds);

}  // namespace equitile

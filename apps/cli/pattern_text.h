// What a head attends to, in words.
#pragma once

#include <string>

#include "equitile/pattern/head_pattern.h"

namespace equitile {

// "1.5 frames", "48 tokens in 3 stripes"; empty where a mode has no size.
std::string SizeText(const HeadPattern& head);

}  // namespace equitile

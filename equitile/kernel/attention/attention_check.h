// What an attention call refuses, apart from what it computes.
#pragma once

#include "equitile/kernel/attention/attention.h"

namespace equitile {

// Throws InputError where shapes, rows, orders or tails do not fit.
void CheckAttention(const AttentionArgs& args);

}  // namespace equitile

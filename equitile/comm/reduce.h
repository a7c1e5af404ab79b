// How two ranks' numbers become one: the same everywhere, so that sums over ranks, taken in rank
// order, have the same bits whoever carries the messages.
#pragma once

#include <algorithm>

#include "equitile/comm/communicator.h"

namespace equitile {

template <typename Number>
Number Combine(Number a, Number b, Reduce op) {
  switch (op) {
    case Reduce::kMin:
      return std::min(a, b);
    case Reduce::kMax:
      return std::max(a, b);
    case Reduce::kSum:
      break;
  }
  return a + b;
}

}  // namespace equitile

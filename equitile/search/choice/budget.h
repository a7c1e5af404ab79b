// One budget for all heads of a model: what is saved is saved where it costs the least error per
// second. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace equitile {

// What a head could do, over all steps that it would do so in.
struct BudgetOption {
  double error = 0, seconds = 0, blocks = 0;
};

struct BudgetItem {
  size_t layer = 0;  // items of one layer are computed together; items of a layer stand together
  std::vector<BudgetOption> options;  // the first one is dense
};

struct BudgetTarget {
  enum class Kind : uint8_t {
    kBlocks,   // until at most so many are left
    kSeconds,  // the same
    kError,    // as long as it stays at or below
  };
  Kind kind = Kind::kError;
  double value = 0;
};

struct BudgetPoint {
  double error = 0, seconds = 0, blocks = 0;
};

struct BudgetChoice {
  std::vector<size_t> options;     // [items]
  std::vector<BudgetPoint> curve;  // from dense, one more per move, to where it ended
  double price = 0;                // error per second of the last move; 0 without one
  bool reached = true;             // false: everything was saved and the target not met
  const BudgetPoint& totals() const { return curve.back(); }
};

// Seconds of a layer whose items have these options. Empty: the sum of the items' own.
using LayerSeconds = std::function<double(size_t layer, std::span<const size_t> options)>;

// Goes down the lower convex hull of every item, the move with the least error per second saved
// first; of equal ones the first item's. Where seconds are sums, no other choice with as few
// seconds has less error (test Budget.GreedyIsAsGoodAsExhaustiveSearch). Where they are not, an
// item's own seconds decide which option is next, and the layer's what it saves: a move that takes
// nothing off the layer waits until there is no other.
BudgetChoice SpendBudget(std::span<const BudgetItem> items, const BudgetTarget& target,
                         const LayerSeconds& layer_seconds = {});

}  // namespace equitile

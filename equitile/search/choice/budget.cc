#include "equitile/search/choice/budget.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Move {
  size_t to = 0;
  double saved = 0;  // seconds
  double price = kNever;
};

class Spender {
 public:
  Spender(std::span<const BudgetItem> items, const BudgetTarget& target,
          const LayerSeconds& layer_seconds)
      : items_(items), target_(target), layer_seconds_(layer_seconds), next_(items.size()) {
    choice_.options.assign(items.size(), 0);
    BudgetPoint dense;
    for (size_t i = 0; i < items.size(); ++i) {
      const BudgetOption& full = items[i].options.front();
      dense.error += full.error;
      dense.blocks += full.blocks;
      if (!layer_seconds_) dense.seconds += full.seconds;
      if (i > 0 && items[i].layer == items[i - 1].layer) {
        ++layers_.back().end;
      } else {
        layers_.push_back({i, i + 1, items[i].layer, 0});
      }
      layer_of_item_.push_back(layers_.size() - 1);
    }
    for (Layer& layer : layers_) {
      if (layer_seconds_) dense.seconds += layer.seconds = Seconds(layer);
    }
    choice_.curve.push_back(dense);
    for (size_t i = 0; i < items.size(); ++i) next_[i] = MoveOf(i);
  }

  BudgetChoice Spend() {
    while (!IsReached(choice_.totals())) {
      const std::optional<size_t> item = Cheapest();
      if (!item) {
        choice_.reached = target_.kind == BudgetTarget::Kind::kError;
        break;
      }
      const BudgetPoint after = After(*item);
      if (target_.kind == BudgetTarget::Kind::kError && after.error > target_.value) break;
      Take(*item, after);
    }
    return std::move(choice_);
  }

 private:
  struct Layer {
    size_t begin, end, number;
    double seconds;
  };

  bool IsReached(const BudgetPoint& point) const {
    switch (target_.kind) {
      case BudgetTarget::Kind::kBlocks:
        return point.blocks <= target_.value;
      case BudgetTarget::Kind::kSeconds:
        return point.seconds <= target_.value;
      case BudgetTarget::Kind::kError:
        return false;
    }
    return true;
  }

  double Seconds(const Layer& layer) const {
    return layer_seconds_(
        layer.number,
        std::span<const size_t>(choice_.options).subspan(layer.begin, layer.end - layer.begin));
  }

  // The next point of the item's hull, by its own seconds.
  std::optional<size_t> NextOption(size_t item) const {
    const std::vector<BudgetOption>& options = items_[item].options;
    const BudgetOption& now = options[choice_.options[item]];
    std::optional<size_t> best;
    double best_slope = kNever;
    for (size_t i = 0; i < options.size(); ++i) {
      const double saved = now.seconds - options[i].seconds;
      if (!(saved > 0)) continue;
      const double slope = (options[i].error - now.error) / saved;
      const bool is_longer =
          best && slope == best_slope && options[i].seconds < options[*best].seconds;
      if (slope < best_slope || is_longer) {
        best = i;
        best_slope = slope;
      }
    }
    return best;
  }

  std::optional<Move> MoveOf(size_t item) {
    const std::optional<size_t> to = NextOption(item);
    if (!to) return std::nullopt;
    const std::vector<BudgetOption>& options = items_[item].options;
    const BudgetOption &now = options[choice_.options[item]], &then = options[*to];
    Move move{.to = *to, .saved = now.seconds - then.seconds, .price = kNever};
    if (layer_seconds_) {
      const Layer& layer = layers_[layer_of_item_[item]];
      const size_t from = std::exchange(choice_.options[item], *to);
      move.saved = layer.seconds - Seconds(layer);
      choice_.options[item] = from;
    }
    if (move.saved > 0) move.price = (then.error - now.error) / move.saved;
    return move;
  }

  std::optional<size_t> Cheapest() const {
    std::optional<size_t> best;
    for (size_t i = 0; i < next_.size(); ++i) {
      if (next_[i] && (!best || next_[i]->price < next_[*best]->price)) best = i;
    }
    return best;
  }

  BudgetPoint After(size_t item) const {
    const std::vector<BudgetOption>& options = items_[item].options;
    const BudgetOption &now = options[choice_.options[item]], &then = options[next_[item]->to];
    BudgetPoint point = choice_.totals();
    point.error += then.error - now.error;
    point.blocks += then.blocks - now.blocks;
    point.seconds -= next_[item]->saved;
    return point;
  }

  void Take(size_t item, const BudgetPoint& after) {
    choice_.options[item] = next_[item]->to;
    choice_.curve.push_back(after);
    if (std::isfinite(next_[item]->price))
      choice_.price = std::max(choice_.price, next_[item]->price);
    Layer& layer = layers_[layer_of_item_[item]];
    if (!layer_seconds_) {
      next_[item] = MoveOf(item);
      return;
    }
    layer.seconds = Seconds(layer);
    for (size_t i = layer.begin; i < layer.end; ++i) next_[i] = MoveOf(i);
  }

  std::span<const BudgetItem> items_;
  BudgetTarget target_;
  const LayerSeconds& layer_seconds_;
  std::vector<Layer> layers_;
  std::vector<size_t> layer_of_item_;
  std::vector<std::optional<Move>> next_;  // [items]
  BudgetChoice choice_;
};

}  // namespace

BudgetChoice SpendBudget(std::span<const BudgetItem> items, const BudgetTarget& target,
                         const LayerSeconds& layer_seconds) {
  EQ_CHECK(!items.empty());
  return Spender(items, target, layer_seconds).Spend();
}

}  // namespace equitile

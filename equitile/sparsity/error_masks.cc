#include "equitile/sparsity/error_masks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/kernel/pooling.h"
#include "equitile/sparsity/predict_masks.h"
#include "equitile/sparsity/strip_pool.h"

namespace equitile {
namespace {

// The budget in integers, so that its sum over ranks is exact: this many units for each block.
constexpr int64_t kUnitsPerBlock = 64;

}  // namespace

ErrorMasks::ErrorMasks(const SourceContext& context, LaneMasks shape, ErrorOptions options)
    : context_(context),
      options_(std::move(options)),
      dense_(BlockMask::Dense(context.lanes, context.grid)),
      masks_(std::move(shape), context.token_grid, context.layers),
      rows_(context) {
  EQ_CHECK(options_.sampled_rows > 0 && !options_.orders.empty());
  for (const TokenOrder order : options_.orders) orders_.push_back(MakeOrder(order));
}

ErrorMasks::Order ErrorMasks::MakeOrder(TokenOrder order) const {
  Order made{.order = order, .token_at_position = TokenAtPosition(context_.token_grid, order)};
  for (const int64_t position : SampledPositions(context_.grid, options_.sampled_rows))
    made.tokens.push_back(made.token_at_position[static_cast<size_t>(position)]);
  made.ascending = made.tokens;
  std::ranges::sort(made.ascending);
  for (const int64_t token : made.tokens)
    made.place.push_back(std::ranges::lower_bound(made.ascending, token) - made.ascending.begin());
  return made;
}

LaneMasks ErrorMasks::MaskFor(const SelfAttentionCall& call) {
  if (call.step < options_.first_step || options_.error <= 0) return dense_;
  const int64_t age = masks_.AgeOf(call.layer);
  if (age < 0 || (options_.refresh && age >= *options_.refresh)) masks_.Set(call.layer, Make(call));
  return masks_.Use(call.layer);
}

bool ErrorMasks::MakesMaskOf(int64_t lane) const {
  return MaskMakerOf(lane, context_.comm->size()) == context_.comm->rank();
}

std::vector<size_t> ErrorMasks::OrdersToJudge(int32_t layer, int64_t lane) const {
  std::vector<size_t> judged;
  const std::vector<TokenOrder>* taken =
      masks_.AgeOf(layer) < 0 ? nullptr : &masks_.MasksOf(layer).orders();
  for (size_t i = 0; i < orders_.size(); ++i) {
    if (taken == nullptr ||
        orders_[i].order ==
            (taken->empty() ? context_.token_grid.home : (*taken)[static_cast<size_t>(lane)]))
      judged.push_back(i);
  }
  return judged;
}

ErrorMasks::Rows ErrorMasks::Gather(const SelfAttentionCall& call, int64_t lane) const {
  Rows rows{
      .lane = lane, .orders = OrdersToJudge(call.layer, lane), .queries = {}, .k = {}, .v = {}};
  for (const size_t order : rows.orders)
    rows.queries.push_back(rows_.Gather(call.q, lane, orders_[order].ascending));
  rows.k = rows_.GatherAll(call.k, lane);
  rows.v = rows_.GatherAll(call.v, lane);
  return rows;
}

ErrorMasks::Judged ErrorMasks::Judge(const SelfAttentionCall& call, const Rows& rows) {
  const int64_t dim = context_.head_dim;
  Judged best{.lane = rows.lane, .order = -1, .errors = {}};
  int64_t fewest = 0;
  std::vector<float> sampled;
  for (size_t i = 0; i < rows.orders.size(); ++i) {
    const Order& order = orders_[rows.orders[i]];
    sampled.resize(order.tokens.size() * static_cast<size_t>(dim));
    for (size_t row = 0; row < order.place.size(); ++row) {
      std::copy_n(rows.queries[i].data() + order.place[row] * dim, dim,
                  sampled.data() + static_cast<int64_t>(row) * dim);
    }
    const LaneKeys keys{.k = rows.k.data(),
                        .v = rows.v.data(),
                        .token_at_position = order.token_at_position.data(),
                        .grid = context_.grid,
                        .head_dim = dim,
                        .scale = call.scale};
    BlockErrors found = ErrorsOf(keys, sampled, options_.sampled_rows,
                                 masks_.shape().TailOf(rows.lane), *context_.pool, partials_);
    const double allowed = options_.error * options_.error * found.squares;
    const int64_t needed = rows.orders.size() > 1 ? BlocksNeeded(found.errors, allowed) : 0;
    if (best.order < 0 || needed < fewest) {
      best.order = static_cast<int64_t>(rows.orders[i]);
      best.errors = std::move(found);
      fewest = needed;
    }
  }
  return best;
}

// Each rank judges one lane at a time, with all its threads, while the others judge theirs.
std::vector<ErrorMasks::Judged> ErrorMasks::JudgeOwnLanes(const SelfAttentionCall& call,
                                                          int64_t lanes) {
  std::vector<Judged> judged;
  const int64_t ranks = context_.comm->size();
  for (int64_t first = 0; first < lanes; first += ranks) {
    Rows own;
    for (int64_t lane = first; lane < std::min(first + ranks, lanes); ++lane) {
      Rows rows = Gather(call, lane);
      if (MakesMaskOf(lane)) own = std::move(rows);
    }
    if (own.lane >= 0) judged.push_back(Judge(call, own));
  }
  return judged;
}

void ErrorMasks::Keep(std::span<const Judged> judged, double squares, int64_t lanes,
                      BlockMask& mask) {
  const int64_t rows = mask.QBlocks(), columns = mask.KvBlocks();
  const int64_t units = kUnitsPerBlock * lanes * rows * columns;
  const double unit = options_.error * options_.error * squares / static_cast<double>(units);
  budget_.Clear();
  for (const Judged& one : judged) {
    const std::span<uint32_t> weights = budget_.AddLane(one.lane, rows, columns);
    for (size_t i = 0; i < weights.size(); ++i) {
      const double weight = unit > 0 ? double{one.errors.errors[i]} / unit : 0;
      weights[i] = static_cast<uint32_t>(std::lround(std::min<double>(weight, kWholeMass)));
    }
  }
  budget_.KeepAllBut(*context_.comm, static_cast<uint64_t>(units), mask);
}

LaneMasks ErrorMasks::Make(const SelfAttentionCall& call) {
  const int64_t all = context_.lanes.Count();
  const int64_t lanes = options_.share_passes ? context_.lanes.heads : all;
  const std::vector<Judged> judged = JudgeOwnLanes(call, lanes);
  // [squares of each lane, order of each lane]
  std::vector<double> numbers(static_cast<size_t>(2 * lanes), 0);
  for (const Judged& one : judged) {
    numbers[static_cast<size_t>(one.lane)] = one.errors.squares;
    numbers[static_cast<size_t>(lanes + one.lane)] = static_cast<double>(one.order);
  }
  context_.comm->AllReduce(std::span(numbers), Reduce::kSum);  // exact: all others add 0
  double squares = 0;
  for (int64_t lane = 0; lane < lanes; ++lane) squares += numbers[static_cast<size_t>(lane)];
  if (!std::isfinite(squares)) {
    throw InputError("[sparsity] layer {}: queries, keys or values are not finite", call.layer);
  }
  LaneMasks::Parts parts{.blocks = BlockMask(context_.lanes, context_.grid),
                         .token_grid = context_.token_grid,
                         .orders = {},
                         .tails = masks_.shape().tails()};
  Keep(judged, squares, lanes, parts.blocks);
  GatherRows(*context_.comm, parts.blocks);
  if (options_.share_passes) SharePasses(parts.blocks);
  for (int64_t lane = 0; lane < all; ++lane) {
    const int64_t from = options_.share_passes ? context_.lanes.HeadOf(lane) : lane;
    const auto order = static_cast<size_t>(numbers[static_cast<size_t>(lanes + from)]);
    parts.orders.push_back(orders_[order].order);
  }
  return LaneMasks(std::move(parts));
}

}  // namespace equitile

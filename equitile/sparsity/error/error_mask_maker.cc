#include "equitile/sparsity/error/error_mask_maker.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/kernel/rows/pooling.h"
#include "equitile/sparsity/mass/predict_masks.h"
#include "equitile/sparsity/source/mask_makers.h"
#include "equitile/sparsity/source/masks_in_force.h"
#include "equitile/sparsity/source/not_finite.h"

namespace equitile {
namespace {

// The budget in integers, so that its sum over ranks is exact: this many units for each block.
constexpr int64_t kUnitsPerBlock = 64;

// Orders are chosen by one row of blocks in so many, in multiples of these: with four queries each
// they fill strips. Of 72 lanes eight rows took another order than all 36 in five, and these lanes
// need 1 % more blocks for it.
constexpr int64_t kChoosingShare = 8, kChoosingRows = 8;

// With four queries to a block each sees a quarter of the keys.
constexpr int64_t kMostKeyStep = 4;

// With so many dims the partial outputs of a strip stay in L2 for some hundred blocks, and the
// squares of errors are right to a fourth, before they are added up over queries.
constexpr int64_t kMostValueDims = 32;

template <typename T>
int64_t BytesOf(const std::vector<T>& values) {
  return static_cast<int64_t>(values.capacity() * sizeof(T));
}

}  // namespace

ErrorMaskMaker::ErrorMaskMaker(const SourceContext& context, Options options)
    : context_(context),
      options_(std::move(options)),
      rows_(context, context.pool->Threads()),
      judge_(*context.pool),
      lanes_(rows_.Slots()) {
  EQ_CHECK(options_.sampled_rows > 0);
  // The home's order first: it moves no token. Then the two that keep frames or places together.
  if (options_.orders.empty()) {
    const TokenOrder home = context.token_grid.home;
    options_.orders.push_back(home);
    for (const TokenOrder order : {TokenOrder::kFHW, TokenOrder::kHWF})
      if (order != home) options_.orders.push_back(order);
  }
  for (const TokenOrder order : options_.orders) orders_.push_back(MakeOrder(order));
  const int64_t blocks = context.grid.QBlocks();
  const int64_t count = std::min(blocks, RoundUp(CeilDiv(blocks, kChoosingShare), kChoosingRows));
  for (int64_t i = 0; i < count; ++i) choosing_.push_back((2 * i + 1) * blocks / (2 * count));
  for (int64_t block = 0; block < blocks; ++block) {
    all_.push_back(block);
    if (!std::ranges::binary_search(choosing_, block)) others_.push_back(block);
  }
}

int64_t ErrorMaskMaker::Bytes() const {
  int64_t bytes = budget_.Bytes() + judge_.Bytes() + rows_.Bytes();
  for (const std::vector<Rows>& turn : lanes_) {
    for (const Rows& rows : turn) {
      bytes += BytesOf(rows.k) + BytesOf(rows.v);
      for (const Rows::Candidate& one : rows.candidates) bytes += BytesOf(one.queries);
    }
  }
  for (const std::vector<BlockErrors>& lane : errors_) {
    for (const BlockErrors& one : lane) bytes += one.Bytes();
  }
  return bytes;
}

ErrorMaskMaker::Order ErrorMaskMaker::MakeOrder(TokenOrder order) const {
  Order made{.order = order, .token_at_position = TokenAtPosition(context_.token_grid, order)};
  for (const int64_t position : SampledPositions(context_.grid, options_.sampled_rows))
    made.tokens.push_back(made.token_at_position[static_cast<size_t>(position)]);
  made.ascending = made.tokens;
  std::ranges::sort(made.ascending);
  for (const int64_t token : made.tokens)
    made.place.push_back(std::ranges::lower_bound(made.ascending, token) - made.ascending.begin());
  return made;
}

size_t ErrorMaskMaker::PlaceOf(TokenOrder order) {
  const auto found = std::ranges::find(orders_, order, &Order::order);
  if (found != orders_.end()) return static_cast<size_t>(found - orders_.begin());
  orders_.push_back(MakeOrder(order));
  return orders_.size() - 1;
}

std::vector<size_t> ErrorMaskMaker::OrdersToJudge(const Wish& wish, int64_t lane) {
  if (wish.before != nullptr) return {PlaceOf(OrderIn(*wish.before, lane))};
  std::vector<size_t> choice(options_.orders.size());
  std::iota(choice.begin(), choice.end(), size_t{0});
  return choice;
}

TokenOrder ErrorMaskMaker::OrderIn(const LaneMasks& masks, int64_t lane) const {
  return masks.orders().empty() ? context_.token_grid.home
                                : masks.orders()[static_cast<size_t>(lane)];
}

void ErrorMaskMaker::Gather(const SelfAttentionCall& call, const Wish& wish, const LaneMaker& lane,
                            Rows& rows) {
  const std::vector<size_t> orders = OrdersToJudge(wish, lane.lane);
  rows.lane = lane.lane;
  rows.orders = orders.size();
  if (rows.candidates.size() < orders.size()) rows.candidates.resize(orders.size());
  for (size_t i = 0; i < orders.size(); ++i) {
    rows.candidates[i].order = orders[i];
    rows_.Gather(call.q, lane, orders_[orders[i]].ascending, rows.candidates[i].queries);
  }
  rows_.GatherAll(call.k, lane, rows.k);
  rows_.GatherAll(call.v, lane, rows.v);
}

BlockErrors::Lane ErrorMaskMaker::LaneOf(const Rows& rows, const Rows::Candidate& candidate,
                                         float scale, Tail tail) const {
  const Order& order = orders_[candidate.order];
  BlockErrors::Lane lane{.keys = {.k = rows.k.data(),
                                  .v = rows.v.data(),
                                  .token_at_position = order.token_at_position.data(),
                                  .grid = context_.grid,
                                  .head_dim = context_.head_dim},
                         .queries = {},
                         .scale = scale,
                         .tail = tail,
                         .key_step = KeyStep(),
                         .value_dims = ValueDims()};
  for (const int64_t place : order.place)
    lane.queries.push_back(candidate.queries.data() + place * context_.head_dim);
  return lane;
}

size_t ErrorMaskMaker::FewestBlocks(std::span<const BlockErrors> candidates, double error) const {
  size_t best = 0;
  int64_t fewest = INT64_MAX;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const double allowed = error * error * candidates[i].Squares();
    const int64_t needed = BlocksNeeded(candidates[i].ErrorsOf(choosing_), allowed);
    if (needed >= fewest) continue;
    best = i;
    fewest = needed;
  }
  return best;
}

// Packs them, and judges those rows of blocks by which an order is chosen, if one is.
void ErrorMaskMaker::JudgeCandidates(std::span<BlockErrors* const> candidates, bool choose,
                                     int thread) {
  judge_.Pack(candidates, thread);
  if (choose) judge_.Judge(candidates, choosing_, thread);
}

void ErrorMaskMaker::Judge(const SelfAttentionCall& call, const Wish& wish,
                           std::span<const Task> lanes, int thread) {
  std::vector<BlockErrors*> candidates, chosen;
  for (const auto& [rows, errors, judged] : lanes) {
    if (errors.size() < rows.orders) errors.resize(rows.orders);
    for (size_t i = 0; i < rows.orders; ++i) {
      const Tail tail = wish.shape.TailOf(rows.lane);
      errors[i].Begin(LaneOf(rows, rows.candidates[i], call.scale, tail), options_.sampled_rows);
      candidates.push_back(&errors[i]);
    }
  }
  // Where one lane chooses, all are judged in two parts.
  const bool choose = candidates.size() > lanes.size();
  if (thread == BlockJudge::kAllThreads) {
    JudgeCandidates(candidates, choose, thread);
  } else {  // one after the other: while its keys are in the cache
    for (BlockErrors*& one : candidates) JudgeCandidates({&one, 1}, choose, thread);
  }
  for (const auto& [rows, errors, judged] : lanes) {
    const size_t best = choose ? FewestBlocks(std::span(errors).first(rows.orders), wish.error) : 0;
    judged = {.lane = rows.lane, .order = rows.candidates[best].order, .errors = {}, .squares = 0};
    chosen.push_back(&errors[best]);
  }
  judge_.Judge(chosen, choose ? others_ : all_, thread);
  for (size_t i = 0; i < chosen.size(); ++i) {
    lanes[i].judged.errors = chosen[i]->errors();
    lanes[i].judged.squares = chosen[i]->Squares();
  }
}

// Every key is seen by a query of each block.
int64_t ErrorMaskMaker::KeyStep() const {
  int64_t step = kMostKeyStep;
  while (step > options_.sampled_rows || context_.grid.block_tokens % (step * kStripTokens) != 0)
    step /= 2;
  return step;
}

int64_t ErrorMaskMaker::ValueDims() const {
  return context_.head_dim % kMostValueDims == 0 ? kMostValueDims : context_.head_dim;
}

// A lane for each thread at a time; fewer are shared by all threads.
std::vector<ErrorMaskMaker::Judged> ErrorMaskMaker::JudgeOwnLanes(const SelfAttentionCall& call,
                                                                  const Wish& wish,
                                                                  std::span<const int64_t> lanes) {
  std::vector<Judged> judged;
  const auto own_of = [&](const LaneRows::Turn& turn) {
    return static_cast<size_t>(std::ranges::count_if(
        turn.lanes, [&](const LaneMaker& lane) { return rows_.IsOwn(lane); }));
  };
  const auto gather = [&](const LaneRows::Turn& turn) {
    std::vector<Rows>& own = lanes_[turn.slot];
    if (own.size() < own_of(turn)) own.resize(own_of(turn));
    size_t next = 0;
    for (const LaneMaker& lane : turn.lanes)
      Gather(call, wish, lane, rows_.IsOwn(lane) ? own[next++] : sent_);
  };
  rows_.InTurns(lanes, gather, [&](const LaneRows::Turn& turn) {
    const size_t own = own_of(turn), before = judged.size();
    judged.resize(before + own);
    if (errors_.size() < own) errors_.resize(own);
    std::vector<Task> tasks;
    for (size_t i = 0; i < own; ++i)
      tasks.push_back({lanes_[turn.slot][i], errors_[i], judged[before + i]});
    if (std::ssize(tasks) < context_.pool->Threads()) {
      Judge(call, wish, tasks, BlockJudge::kAllThreads);
    } else {
      context_.pool->ParallelFor(std::ssize(tasks), [&](int64_t i, int thread) {
        Judge(call, wish, std::span(tasks).subspan(static_cast<size_t>(i), 1), thread);
      });
    }
  });
  return judged;
}

void ErrorMaskMaker::Keep(std::span<const Judged> judged, const Wish& wish, double squares,
                          int64_t lanes, BlockMask& mask) {
  const int64_t rows = mask.QBlocks(), columns = mask.KvBlocks();
  const int64_t units = kUnitsPerBlock * lanes * rows * columns;
  const double unit = wish.error * wish.error * squares / static_cast<double>(units);
  budget_.Clear();
  for (const Judged& one : judged) {
    const std::span<uint32_t> weights = budget_.AddLane(one.lane, rows, columns);
    for (size_t i = 0; i < weights.size(); ++i) {
      const double weight = unit > 0 ? double{one.errors[i]} / unit + 0.5 : 0;
      weights[i] = weight < kWholeMass ? static_cast<uint32_t>(weight) : kWholeMass;
    }
  }
  budget_.KeepAllBut(*context_.comm, static_cast<uint64_t>(units), mask);
}

LaneMasks ErrorMaskMaker::Make(const SelfAttentionCall& call, const Wish& wish) {
  const int64_t all = context_.lanes.Count();
  const std::vector<int64_t> lanes =
      JudgedLanes(context_.lanes, options_.share_passes, wish.skipped);
  const std::vector<Judged> judged = JudgeOwnLanes(call, wish, lanes);
  // [squares of each lane, order of each lane]
  std::vector<double> numbers(static_cast<size_t>(2 * all), 0);
  for (const Judged& one : judged) {
    numbers[static_cast<size_t>(one.lane)] = one.squares;
    numbers[static_cast<size_t>(all + one.lane)] = static_cast<double>(one.order);
  }
  context_.comm->AllReduce(std::span(numbers), Reduce::kSum);  // exact: all others add 0
  double squares = 0;
  for (const int64_t lane : lanes) squares += numbers[static_cast<size_t>(lane)];
  if (!std::isfinite(squares)) throw NotFinite();
  LaneMasks::Parts parts{.blocks = BlockMask(context_.lanes, context_.grid),
                         .token_grid = context_.token_grid,
                         .orders = {},
                         .tails = wish.shape.tails()};
  Keep(judged, wish, squares, std::ssize(lanes), parts.blocks);
  GatherRows(*context_.comm, parts.blocks);
  if (options_.share_passes) SharePasses(parts.blocks);
  for (int64_t lane = 0; lane < all; ++lane) {
    const int64_t from = options_.share_passes ? context_.lanes.HeadOf(lane) : lane;
    const bool is_judged = std::ranges::binary_search(lanes, from);
    const auto order = static_cast<size_t>(numbers[static_cast<size_t>(all + from)]);
    parts.orders.push_back(is_judged ? orders_[order].order : context_.token_grid.home);
  }
  return LaneMasks(std::move(parts));
}

}  // namespace equitile

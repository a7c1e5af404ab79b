#include "equitile/sparsity/error_mask_maker.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/kernel/pooling.h"
#include "equitile/sparsity/masks_in_force.h"
#include "equitile/sparsity/not_finite.h"
#include "equitile/sparsity/predict_masks.h"
#include "equitile/sparsity/strip_pool.h"

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

// Of each rank, at least: the ranks wait for each other before every round.
constexpr size_t kLanesOfAnExchange = 4;

template <typename T>
int64_t BytesOf(const std::vector<T>& values) {
  return static_cast<int64_t>(values.capacity() * sizeof(T));
}

}  // namespace

ErrorMaskMaker::ErrorMaskMaker(const SourceContext& context, Options options)
    : context_(context), options_(std::move(options)), rows_(context), judge_(*context.pool) {
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
  const auto add = [&](const Rows& rows) {
    bytes += BytesOf(rows.k) + BytesOf(rows.v);
    for (const Rows::Candidate& one : rows.candidates)
      bytes += BytesOf(one.queries) + one.errors.Bytes();
  };
  for (const Rows& rows : lanes_) add(rows);
  add(sent_);
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

bool ErrorMaskMaker::MakesMaskOf(int64_t lane) const {
  return MaskMakerOf(lane, context_.comm->size()) == context_.comm->rank();
}

std::vector<int64_t> ErrorMaskMaker::LanesOf(const Wish& wish) const {
  std::vector<int64_t> lanes;
  const int64_t end = options_.share_passes ? context_.lanes.heads : context_.lanes.Count();
  for (int64_t lane = 0; lane < end; ++lane) {
    if (!std::ranges::binary_search(wish.skipped, context_.lanes.HeadOf(lane)))
      lanes.push_back(lane);
  }
  return lanes;
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

void ErrorMaskMaker::Gather(const SelfAttentionCall& call, const Wish& wish, int64_t lane,
                            Rows& rows) {
  const std::vector<size_t> orders = OrdersToJudge(wish, lane);
  rows.lane = lane;
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

size_t ErrorMaskMaker::FewestBlocks(const Rows& rows, double error) const {
  size_t best = 0;
  int64_t fewest = INT64_MAX;
  for (size_t i = 0; i < rows.orders; ++i) {
    const BlockErrors& errors = rows.candidates[i].errors;
    const double allowed = error * error * errors.Squares();
    const int64_t needed = BlocksNeeded(errors.ErrorsOf(choosing_), allowed);
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

void ErrorMaskMaker::Judge(const SelfAttentionCall& call, const Wish& wish, std::span<Rows> lanes,
                           std::span<Judged> judged, int thread) {
  std::vector<BlockErrors*> candidates, chosen;
  for (Rows& rows : lanes) {
    for (Rows::Candidate& one : std::span(rows.candidates).first(rows.orders)) {
      one.errors.Begin(LaneOf(rows, one, call.scale, wish.shape.TailOf(rows.lane)),
                       options_.sampled_rows);
      candidates.push_back(&one.errors);
    }
  }
  // Where one lane chooses, all are judged in two parts.
  const bool choose = candidates.size() > lanes.size();
  if (thread == BlockJudge::kAllThreads) {
    JudgeCandidates(candidates, choose, thread);
  } else {  // one after the other: while its keys are in the cache
    for (BlockErrors*& one : candidates) JudgeCandidates({&one, 1}, choose, thread);
  }
  for (size_t i = 0; i < lanes.size(); ++i) {
    Rows& rows = lanes[i];
    Rows::Candidate& best = rows.candidates[choose ? FewestBlocks(rows, wish.error) : 0];
    judged[i] = {.lane = rows.lane, .order = best.order, .errors = {}, .squares = 0};
    chosen.push_back(&best.errors);
  }
  judge_.Judge(chosen, choose ? others_ : all_, thread);
  for (size_t i = 0; i < chosen.size(); ++i) {
    judged[i].errors = chosen[i]->errors();
    judged[i].squares = chosen[i]->Squares();
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

// A lane for each thread at a time, while the other ranks judge theirs; fewer are shared by all
// threads. Rows come in the order of lanes, however many that are on each rank and in a round.
std::vector<ErrorMaskMaker::Judged> ErrorMaskMaker::JudgeOwnLanes(const SelfAttentionCall& call,
                                                                  const Wish& wish,
                                                                  std::span<const int64_t> lanes) {
  std::vector<Judged> judged;
  const auto threads = static_cast<size_t>(context_.pool->Threads());
  const auto ranks = static_cast<size_t>(context_.comm->size());
  const size_t step = ranks * (ranks == 1 ? threads : std::max(threads, kLanesOfAnExchange));
  for (size_t first = 0; first < lanes.size(); first += step) {
    const auto round = lanes.subspan(first, std::min(step, lanes.size() - first));
    const auto own = static_cast<size_t>(
        std::ranges::count_if(round, [&](int64_t lane) { return MakesMaskOf(lane); }));
    if (own > lanes_.size()) lanes_.resize(own);  // before rows are on their way into them
    AbortOnError(*context_.comm, [&] {
      size_t next = 0;
      for (const int64_t lane : round)
        Gather(call, wish, lane, MakesMaskOf(lane) ? lanes_[next++] : sent_);
      rows_.Finish();
    });
    judged.resize(judged.size() + own);
    const std::span<Rows> rows = std::span(lanes_).first(own);
    const std::span<Judged> results = std::span(judged).last(own);
    if (own < threads) {
      Judge(call, wish, rows, results, BlockJudge::kAllThreads);
    } else {
      context_.pool->ParallelFor(std::ssize(rows), [&](int64_t i, int thread) {
        const auto at = static_cast<size_t>(i);
        Judge(call, wish, rows.subspan(at, 1), results.subspan(at, 1), thread);
      });
    }
  }
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
  const std::vector<int64_t> lanes = LanesOf(wish);
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

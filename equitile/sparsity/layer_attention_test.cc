#include "equitile/sparsity/layer_attention.h"

#include <gtest/gtest.h>

#include <mutex>

#include "equitile/sparsity/source/sparsity_testing.h"

namespace equitile {
namespace {

using testing::LayerCase;
using testing::LayerWorld;
using testing::OnRanks;

// Another mask in every step and layer, some lanes in another order.
class ChangingMasks final : public MaskSource {
 public:
  explicit ChangingMasks(const LayerCase& test) : test_(test) {}
  LaneMasks MaskFor(const SelfAttentionCall& call) override {
    calls.emplace_back(call.step, call.layer);
    BlockMask blocks(test_.lanes, test_.Grid());
    const Rng rng(7, static_cast<uint32_t>(call.step * 100 + call.layer));
    uint64_t draw = 0;
    for (int64_t lane = 0; lane < blocks.LaneCount(); ++lane) {
      for (int64_t q = 0; q < blocks.QBlocks(); ++q) {
        for (int64_t k = 0; k < blocks.KvBlocks(); ++k) {
          if (rng.NormalAt(draw++) > 0) blocks.Set(lane, q, k);
        }
      }
    }
    std::vector<TokenOrder> orders(static_cast<size_t>(test_.lanes.Count()), TokenOrder::kFHW);
    orders[static_cast<size_t>(call.layer)] = TokenOrder::kHWF;
    return LaneMasks({.blocks = std::move(blocks),
                      .token_grid = test_.token_grid,
                      .orders = std::move(orders),
                      .tails = {}});
  }
  std::vector<std::pair<int32_t, int32_t>> calls;

 private:
  LayerCase test_;
};

// Output of all steps and layers, [step][layer][batch][tokens][heads][dim].
std::vector<float> RunLayers(const LayerWorld& world, int32_t ranks, int threads,
                             const std::string& planner = "auto", Compute compute = Compute::kF32) {
  const LayerCase& test = world.test();
  const int64_t row = test.lanes.heads * test.head_dim;
  const int64_t call_numbers = test.lanes.batch * test.Tokens() * row;
  std::vector<float> all(static_cast<size_t>(test.steps * test.layers * call_numbers), NAN);
  OnRanks(ranks, [&](Communicator& comm) {
    ThreadPool pool(threads);
    Executor executor(comm, pool);
    auto source = std::make_unique<ChangingMasks>(test);
    ChangingMasks& masks = *source;
    LayerAttention attention(
        executor, std::move(source),
        {.planner = planner, .head_dim = test.head_dim, .layers = test.layers, .compute = compute});
    const Problem problem{.ranks = comm.size(),
                          .lanes = test.lanes,
                          .grid = test.Grid(),
                          .token_grid = {},
                          .orders = {}};
    const HomeRows home(HomeMap(problem), problem.lanes, comm.rank());
    std::vector<float> out(static_cast<size_t>(std::max<int64_t>(home.Count(), 1) * row));
    for (int32_t step = 0; step < test.steps; ++step) {
      for (int32_t layer = 0; layer < test.layers; ++layer) {
        world.Call(comm, step, layer, out.data(),
                   [&](const SelfAttentionCall& call) { attention(call); });
        const auto to = all.begin() + (step * test.layers + layer) * call_numbers;
        for (int64_t i = 0; i < home.Count(); ++i) {
          const auto [item, token] = home.TokenOf(i);
          std::copy_n(out.begin() + i * row, row, to + (item * test.Tokens() + token) * row);
        }
        EXPECT_EQ(masks.calls.back(), (std::pair{step, layer}));
      }
    }
    EXPECT_EQ(std::ssize(attention.records()), test.steps * test.layers);
    EXPECT_EQ(attention.LastOfLayers().back().step, test.steps - 1);
    for (const LayerRecord& record : attention.records()) {
      EXPECT_GE(record.rho_after, 1.0 - 1e-9);
      EXPECT_NEAR(record.density, 0.5, 0.2);
    }
  });
  return all;
}

TEST(LayerAttention, MasksThatChangeGiveTheSameBitsOnAnyRanksAndThreads) {
  const LayerWorld world{LayerCase{}};
  const std::vector<float> one = RunLayers(world, 1, 1);
  EXPECT_EQ(std::count_if(one.begin(), one.end(), [](float x) { return std::isnan(x); }), 0);
  EXPECT_EQ(RunLayers(world, 1, 3), one);
  for (const int32_t ranks : {2, 3, 5, 8}) EXPECT_EQ(RunLayers(world, ranks, 2), one) << ranks;
  EXPECT_EQ(RunLayers(world, 3, 1, "fractional"), one);
  EXPECT_EQ(RunLayers(world, 2, 1, "ulysses"), one);
}

TEST(LayerAttention, IntegersGiveTheSameBitsOnAnyRanksAndThreads) {
  const LayerWorld world{LayerCase{}};
  for (const Compute compute : {Compute::kInt16, Compute::kInt8}) {
    const std::vector<float> one = RunLayers(world, 1, 1, "auto", compute);
    EXPECT_EQ(RunLayers(world, 1, 3, "auto", compute), one) << ComputeName(compute);
    for (const int32_t ranks : {2, 3, 5})
      EXPECT_EQ(RunLayers(world, ranks, 2, "auto", compute), one) << ComputeName(compute) << ranks;
  }
}

// What all keys of a head have in common costs int8 its precision in the first step only.
TEST(LayerAttention, KeysOfInt8AreCenteredFromTheSecondStepOn) {
  LayerCase test;
  test.steps = 3;
  LayerWorld world(test);
  std::vector<float>& keys = world.values(1);
  for (size_t i = 3; i < keys.size(); i += static_cast<size_t>(test.head_dim)) keys[i] += 60.0f;
  const std::vector<float> exact = RunLayers(world, 2, 1),
                           rounded = RunLayers(world, 2, 1, "auto", Compute::kInt8);
  std::vector<double> errors(3, 0.0);
  for (size_t i = 0; i < exact.size(); ++i) {
    const double error = double{exact[i]} - rounded[i];
    errors[3 * i / exact.size()] += error * error;
  }
  EXPECT_GT(errors[0], 0.0);
  for (const size_t step : {1, 2}) EXPECT_LT(errors[step], 0.05 * errors[0]) << step;
}

// Equal blocks in other orders are other masks: they must not share a plan.
TEST(LayerAttention, OrdersArePartOfWhatAPlanIsMadeFor) {
  const LayerCase test;
  const BlockMask blocks = BlockMask::Dense(test.lanes, test.Grid());
  std::vector<TokenOrder> orders(6, TokenOrder::kFHW);
  orders[2] = TokenOrder::kHWF;
  const LaneMasks natural(blocks),
      ordered({.blocks = blocks, .token_grid = test.token_grid, .orders = orders, .tails = {}});
  PlanOptions options;
  options.ranks = 3;
  SoloCommunicator solo;
  Balancer balancer({.planner = ParsePlanner("fractional", 3), .plan = options, .rule = {}},
                    ClockOf(solo));
  const Plan first = *balancer.PlanFor(0, natural).plan;
  const Plan second = *balancer.PlanFor(1, ordered).plan;
  EXPECT_TRUE(first.problem().orders.empty());
  EXPECT_EQ(second.problem().orders, orders);
  EXPECT_EQ(balancer.PlanFor(0, ordered).plan->problem().orders, orders);
  EXPECT_THROW(Lower(first, ordered), InputError);
  EXPECT_NO_THROW(Lower(second, ordered));
}

// Masks of which some heads keep nothing.
LaneMasks MasksWithout(const LayerCase& test, const std::vector<int64_t>& heads) {
  LaneMasks::Parts parts{.blocks = BlockMask::Dense(test.lanes, test.Grid()),
                         .token_grid = test.token_grid,
                         .orders = {},
                         .tails = {}};
  for (int64_t lane = 0; lane < test.lanes.Count(); ++lane) {
    const int64_t head = test.lanes.HeadOf(lane);
    parts.orders.push_back(head == 2 ? TokenOrder::kHWF : TokenOrder::kFHW);
    parts.tails.push_back(Tail::kNone);
    if (!std::ranges::binary_search(heads, head)) continue;
    for (int64_t q = 0; q < parts.blocks.QBlocks(); ++q)
      std::ranges::fill(parts.blocks.MutableRow(lane, q), 0);
  }
  return LaneMasks(std::move(parts));
}

struct SkippingRun {
  std::vector<float> out;  // [batch][tokens][heads][dim]
  int64_t bytes = 0;       // sent by all ranks
};

// told: the call says which heads are skipped; else they are just empty.
SkippingRun RunSkipping(const LayerWorld& world, const std::vector<int64_t>& heads, int32_t ranks,
                        bool told, const std::string& planner = "auto") {
  const LayerCase& test = world.test();
  const int64_t dim = test.head_dim;
  SkippingRun run{
      std::vector<float>(static_cast<size_t>(test.lanes.Count() * test.Tokens() * dim))};
  std::mutex mutex;
  OnRanks(ranks, [&](Communicator& comm) {
    ThreadPool pool(2);
    Executor executor(comm, pool);
    auto source = std::make_unique<ConstantMasks>(MasksWithout(test, heads));
    EXPECT_EQ(source->SkippedHeads({}), heads);
    LayerAttention attention(executor, std::move(source),
                             {.planner = planner, .head_dim = dim, .layers = test.layers});
    const Problem problem{.ranks = comm.size(),
                          .lanes = test.lanes,
                          .grid = test.Grid(),
                          .token_grid = {},
                          .orders = {}};
    const HomeRows home(HomeMap(problem), problem.lanes, comm.rank());
    std::vector<int64_t> there = HeadsLeft(test.lanes.heads, heads);
    if (!told) there = HeadsLeft(test.lanes.heads, {});
    const int64_t width = std::ssize(there) * dim;
    std::vector<float> out(static_cast<size_t>(std::max<int64_t>(home.Count() * width, 1)));
    world.Call(comm, 0, 0, out.data(), [&](const SelfAttentionCall& call) {
      SelfAttentionCall asked = call;
      auto guarded = [&](const RowProducer& rows) {
        return [&](int64_t lane, int64_t token, int64_t count, float* to) {
          EXPECT_FALSE(told && std::ranges::binary_search(heads, test.lanes.HeadOf(lane))) << lane;
          rows(lane, token, count, to);
        };
      };
      auto q = guarded(call.q), k = guarded(call.k), v = guarded(call.v);
      asked.q = RowProducer(q), asked.k = RowProducer(k), asked.v = RowProducer(v);
      if (told) asked.skipped = heads;
      attention(asked);
    });
    EXPECT_EQ(std::ssize(attention.records()), 1);
    const std::lock_guard lock(mutex);
    run.bytes += attention.Totals().bytes_sent;
    for (int64_t i = 0; i < home.Count(); ++i) {
      const auto [item, token] = home.TokenOf(i);
      for (size_t h = 0; h < there.size(); ++h) {
        std::copy_n(
            out.begin() + i * width + static_cast<int64_t>(h) * dim, dim,
            run.out.begin() + ((item * test.Tokens() + token) * test.lanes.heads + there[h]) * dim);
      }
    }
  });
  return run;
}

TEST(LayerAttention, SkippedHeadsAreNeitherMovedNorComputed) {
  LayerCase test;
  test.lanes.heads = 4;
  const LayerWorld world{test};
  for (const std::vector<int64_t>& heads :
       std::vector<std::vector<int64_t>>{{1}, {0, 3}, {0, 1, 2, 3}}) {
    const std::vector<float> expected = RunSkipping(world, heads, 1, false).out;
    for (const int32_t ranks : {1, 2, 3, 5}) {
      EXPECT_EQ(RunSkipping(world, heads, ranks, true).out, expected) << ranks;
      // By whole heads: empty ones travel too, as long as nobody says that they are skipped.
      const SkippingRun empty = RunSkipping(world, heads, ranks, false, "ulysses"),
                        skipped = RunSkipping(world, heads, ranks, true, "ulysses");
      EXPECT_EQ(empty.out, expected) << ranks;
      EXPECT_EQ(skipped.out, expected) << ranks;
      if (heads.size() == 4) EXPECT_EQ(skipped.bytes, 0);
      // On two ranks each has one pass, and nothing moves.
      if (ranks > 2) EXPECT_LT(skipped.bytes, empty.bytes) << heads.size() << " of 4, " << ranks;
    }
  }
}

TEST(LayerAttention, WholeRowsAreForOneCallOnly) {
  const LayerCase test;
  const LaneMasks masks(BlockMask::Dense(test.lanes, test.Grid()));
  PlanOptions options;
  options.ranks = 3;
  SoloCommunicator solo;
  Balancer balancer({.planner = ParsePlanner("ring", 3), .plan = options, .rule = {}},
                    ClockOf(solo));
  EXPECT_TRUE(balancer.PlanFor(0, masks).plan->SplitsRows());
  EXPECT_FALSE(balancer.PlanFor(0, masks, /*whole_rows=*/true).plan->SplitsRows());
  EXPECT_TRUE(balancer.PlanFor(0, masks).plan->SplitsRows());
}

}  // namespace
}  // namespace equitile

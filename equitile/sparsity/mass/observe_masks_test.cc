#include "equitile/sparsity/mass/observe_masks.h"

#include <gtest/gtest.h>

#include <mutex>

#include "equitile/sparsity/layer_attention.h"
#include "equitile/sparsity/source/sparsity_testing.h"

namespace equitile {
namespace {

using testing::ExactMasses;
using testing::LayerCase;
using testing::LayerWorld;
using testing::OnRanks;

// Masks of layer 1 in every step, as a model would get them.
std::vector<LaneMasks> Observed(const LayerWorld& world, const ObserveOptions& options,
                                int32_t ranks, const std::string& planner = "auto",
                                Tail tail = Tail::kNone) {
  const LayerCase& test = world.test();
  std::vector<LaneMasks> all;
  std::mutex mutex;
  // Looks over the source's shoulder.
  struct Watched final : MaskSource {
    Watched(ObserveMasks source, std::vector<LaneMasks>& masks)
        : inner(std::move(source)), masks(masks) {}
    LaneMasks MaskFor(const SelfAttentionCall& call) override {
      masks.push_back(inner.MaskFor(call));
      return masks.back();
    }
    bool Observes(const SelfAttentionCall& call) const override { return inner.Observes(call); }
    void Observe(const SelfAttentionCall& call, const LaneMasks& m,
                 std::span<const RowMasses> rows) override {
      inner.Observe(call, m, rows);
    }
    ObserveMasks inner;
    std::vector<LaneMasks>& masks;
  };
  OnRanks(ranks, [&](Communicator& comm) {
    ThreadPool pool(2);
    Executor executor(comm, pool);
    const LaneMasks shape(
        {.blocks = BlockMask(test.lanes, test.Grid()),
         .token_grid = test.token_grid,
         .orders = {},
         .tails = std::vector<Tail>(static_cast<size_t>(test.lanes.Count()), tail)});
    std::vector<LaneMasks> mine;
    LayerAttention attention(
        executor,
        std::make_unique<Watched>(ObserveMasks(world.Context(comm, pool), shape, options), mine),
        {.planner = planner, .head_dim = test.head_dim, .layers = test.layers});
    std::vector<float> out(static_cast<size_t>(test.lanes.Count() * test.Tokens() * test.head_dim));
    for (int32_t step = 0; step < test.steps; ++step) {
      world.Call(comm, step, 1, out.data(),
                 [&](const SelfAttentionCall& call) { attention(call); });
    }
    const std::lock_guard lock(mutex);
    if (all.empty()) all = mine;
    EXPECT_EQ(all, mine) << "rank " << comm.rank();
  });
  return all;
}

TEST(ObserveMasks, KeepTheFewestBlocksThatHeldTheShare) {
  const LayerWorld world{LayerCase{.key_scale = 3.0f}};
  ObserveOptions options;
  options.rule = {.mass = 0.7};
  options.at = 1;
  const std::vector<LaneMasks> masks = Observed(world, options, 1);
  EXPECT_EQ(masks[0].blocks().Density(), 1.0);
  EXPECT_EQ(masks[1].blocks().Density(), 1.0);
  const BlockMask& mask = masks[2].blocks();
  for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
    for (int64_t q = 0; q < mask.QBlocks(); ++q) {
      const std::vector<double> exact = ExactMasses(world, 1, lane, q);
      double held = 0, lightest = 1;
      for (const int32_t block : mask.KeptInRow(lane, q)) {
        held += exact[static_cast<size_t>(block)];
        lightest = std::min(lightest, exact[static_cast<size_t>(block)]);
      }
      EXPECT_GE(held, 0.7 - 1e-5);
      EXPECT_LT(held - lightest, 0.7 + 1e-5);
    }
  }
  for (size_t step = 3; step < masks.size(); ++step) EXPECT_EQ(masks[step], masks[2]);
}

TEST(ObserveMasks, AreTheSameOnAnyRanksAndInAnyLayout) {
  const LayerWorld world{LayerCase{}};
  ObserveOptions options;
  options.rule = {.mass = 0.6};
  const std::vector<LaneMasks> one = Observed(world, options, 1, "auto", Tail::kMean);
  for (const int32_t ranks : {2, 3, 5, 8})
    EXPECT_EQ(Observed(world, options, ranks, "auto", Tail::kMean), one) << ranks;
  EXPECT_EQ(Observed(world, options, 4, "ring", Tail::kMean), one);
}

TEST(ObserveMasks, AreMadeAnewEverySoManySteps) {
  const LayerWorld world{LayerCase{}};
  ObserveOptions options;
  options.rule = {.mass = 0.6};
  options.refresh = 2;
  const std::vector<LaneMasks> masks = Observed(world, options, 2);
  std::string dense;
  for (const LaneMasks& mask : masks) dense += mask.blocks().Density() == 1.0 ? '1' : '0';
  EXPECT_EQ(dense, "100100");
}

}  // namespace
}  // namespace equitile

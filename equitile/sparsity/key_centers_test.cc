#include "equitile/sparsity/key_centers.h"

#include <gtest/gtest.h>

#include <cmath>

#include "equitile/base/error.h"
#include "equitile/sparsity/source/sparsity_testing.h"

namespace equitile {
namespace {

using testing::LayerCase;
using testing::LayerWorld;
using testing::OnRanks;

constexpr int64_t kHeads[] = {0, 2};  // of three

// Centers of layer 1 after a step, [batch][two heads][head_dim].
std::vector<float> Centers(const KeyCenters& centers, const LayerCase& test) {
  std::vector<float> all;
  for (const float* center : centers.Of(1, kHeads))
    all.insert(all.end(), center, center + test.head_dim);
  return all;
}

// All layers of a step.
void SeeStep(const LayerWorld& world, Communicator& comm, ThreadPool& pool, KeyCenters& centers) {
  const LayerCase& test = world.test();
  const HomeMap homes({.ranks = comm.size(),
                       .lanes = test.lanes,
                       .grid = test.Grid(),
                       .token_grid = {},
                       .orders = {}});
  const HomeRows rows(homes, test.lanes, comm.rank());
  for (int32_t layer = 0; layer < test.layers; ++layer) {
    world.Call(comm, 0, layer, nullptr, [&](const SelfAttentionCall& call) {
      centers.Add(call, test.lanes, test.Tokens(), kHeads, rows, pool);
    });
  }
  centers.EndStep(comm);
}

std::vector<float> CentersOn(const LayerWorld& world, int32_t ranks) {
  std::vector<float> found;
  OnRanks(ranks, [&](Communicator& comm) {
    ThreadPool pool(2);
    KeyCenters centers(world.test().layers, world.test().head_dim);
    EXPECT_TRUE(centers.Of(1, kHeads).empty());
    SeeStep(world, comm, pool, centers);
    SeeStep(world, comm, pool, centers);  // a step is not added to the one before it
    if (comm.rank() == 0) found = Centers(centers, world.test());
  });
  return found;
}

TEST(KeyCenters, AreMeansOfKeysAndTheSameOnAnyRanks) {
  LayerWorld world{LayerCase{}};
  const LayerCase& test = world.test();
  for (float& x : world.values(1)) x += 3.0f;
  const std::vector<float> one = CentersOn(world, 1);
  ASSERT_EQ(std::ssize(one), 2 * 2 * test.head_dim);
  for (int64_t item = 0; item < 2; ++item) {
    for (size_t h = 0; h < 2; ++h) {
      for (int64_t dim = 0; dim < test.head_dim; ++dim) {
        double sum = 0;
        int64_t count = 0;
        for (int64_t token = 0; token < test.Tokens(); token += 8, ++count)
          sum += double{world.Row(1, 1, test.lanes.Lane(item, kHeads[h]), token)[dim]};
        const auto at = static_cast<size_t>((item * 2 + static_cast<int64_t>(h)) * test.head_dim);
        EXPECT_NEAR(one[at + static_cast<size_t>(dim)], sum / static_cast<double>(count), 1e-5);
      }
    }
  }
  for (const int32_t ranks : {2, 3, 7}) EXPECT_EQ(CentersOn(world, ranks), one) << ranks;
}

TEST(KeyCenters, WhatIsNotFiniteOrHugeSpoilsNoOther) {
  LayerWorld world{LayerCase{}};
  std::vector<float>& keys = world.values(1);
  const std::vector<float> before = CentersOn(world, 1);
  const auto at = static_cast<size_t>(world.Row(1, 1, 2, 8) - keys.data());
  keys[at] = NAN;
  keys[at + 1] = INFINITY;
  keys[at + 2] = -1e30f;
  const std::vector<float> after = CentersOn(world, 2);
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_TRUE(std::isfinite(after[i]));
    EXPECT_EQ(after[i] == before[i], i < 16 || i >= 19) << i;
  }
}

TEST(KeyCenters, GoThroughACheckpoint) {
  const LayerWorld world{LayerCase{}};
  const LayerCase& test = world.test();
  SoloCommunicator comm;
  ThreadPool pool(1);
  KeyCenters centers(test.layers, test.head_dim), other(test.layers, test.head_dim);
  EXPECT_TRUE(centers.State().empty());
  SeeStep(world, comm, pool, centers);
  SourceState state = centers.State();
  other.Restore(state);
  EXPECT_EQ(Centers(other, test), Centers(centers, test));
  other.Restore({});
  EXPECT_TRUE(other.Of(1, kHeads).empty());
  KeyCenters larger(test.layers + 1, test.head_dim);
  EXPECT_THROW(larger.Restore(state), InputError);
  for (const size_t size : {size_t{0}, size_t{7}, size_t{16}, size_t{20}}) {
    state["key_centers"].resize(size);
    EXPECT_THROW(other.Restore(state), InputError) << size;
  }
}

}  // namespace
}  // namespace equitile

#include "equitile/plan/predict/machine.h"

#include <gtest/gtest.h>

#include <cmath>

#include "equitile/base/error.h"
#include "equitile/plan/planners/planner.h"

namespace equitile {
namespace {

TEST(Machine, ParsesLinks) {
  EXPECT_EQ(ParseLink("100Gb/s,2us"), (Link{.latency_seconds = 2e-6, .bytes_per_second = 12.5e9}));
  EXPECT_EQ(ParseLink("1.5GB/s,0.1ms"), (Link{.latency_seconds = 1e-4, .bytes_per_second = 1.5e9}));
  EXPECT_EQ(ParseLink("800Mb/s,500ns"), (Link{.latency_seconds = 5e-7, .bytes_per_second = 1e8}));
  EXPECT_EQ(LinkText(ParseLink("100Gb/s,2us")), "100Gb/s,2us");
  for (const char* bad :
       {"", "100Gb/s", "100Gb/s,", ",2us", "100,2us", "100Gb/s,2", "-1Gb/s,2us", "0Gb/s,2us",
        "100Gb/s,2us,3", "infGb/s,2us", "nanGb/s,2us", "100Gx/s,2us", "1e999Gb/s,1us"}) {
    EXPECT_THROW(ParseLink(bad), InputError) << bad;
  }
}

TEST(Machine, TakesTheNearestRate) {
  Machine machine;
  machine.kernel = {
      {.head_dim = 64, .block = 64, .dtype = "f32", .gflops = 1, .row_seconds = 0.1},
      {.head_dim = 128, .block = 64, .dtype = "f32", .gflops = 2, .row_seconds = 0.2},
      {.head_dim = 128, .block = 64, .dtype = "bf16", .gflops = 3, .row_seconds = 0.3}};
  machine.links = {{.name = "network", .link = {.latency_seconds = 1, .bytes_per_second = 2}}};
  Cluster cluster;
  cluster.wire.head_dim = 120;
  ApplyMachine(machine, 64, "f32", cluster);
  EXPECT_EQ(cluster.gflops, 2);
  EXPECT_EQ(cluster.row_seconds, 0.2);
  EXPECT_EQ(cluster.link.bytes_per_second, 2);
  EXPECT_EQ(cluster.node_link, cluster.link);
  EXPECT_EQ(cluster.cable_bytes_per_second, 0);
  ApplyMachine(machine, 64, "bf16", cluster);
  EXPECT_EQ(cluster.gflops, 3);
  ApplyMachine({}, 64, "f32", cluster);
  EXPECT_EQ(cluster.gflops, 3);
}

TEST(Machine, KnowsLinksInsideAndBetweenNodes) {
  Machine machine;
  machine.links = {{.name = "cable", .link = {.latency_seconds = 1, .bytes_per_second = 6}},
                   {.name = "node", .link = {.latency_seconds = 2, .bytes_per_second = 100}},
                   {.name = "network", .link = {.latency_seconds = 3, .bytes_per_second = 4}}};
  Cluster cluster;
  ApplyMachine(machine, 64, "f32", cluster);
  EXPECT_EQ(cluster.link, machine.links[2].link);
  EXPECT_EQ(cluster.node_link, machine.links[1].link);
  EXPECT_EQ(cluster.cable_bytes_per_second, 6);
  EXPECT_EQ(cluster.FarBytesPerSecond(), 4);  // nobody shares a node
  SetNodes({0, 1, 0, 1, 0}, cluster);
  EXPECT_EQ(cluster.FarBytesPerSecond(), 2);
  EXPECT_TRUE(cluster.SameNode(0, 2) && cluster.SameNode(1, 3) && !cluster.SameNode(2, 3));
  SetNodes({0, 0, 0}, cluster);
  EXPECT_TRUE(cluster.node_of.empty());
  SetNodes({0, 1, 2}, cluster);
  EXPECT_TRUE(cluster.node_of.empty());
  EXPECT_EQ(EvenNodes(5, 2), (std::vector<int32_t>{0, 0, 1, 1, 2}));
  EXPECT_EQ(ParseBandwidth("10Gb/s"), 1.25e9);
  EXPECT_THROW(ParseBandwidth("10Gb/s,2us"), InputError);
}

TEST(Machine, CostsAreIntegersOfOneUnit) {
  Cluster cluster;
  cluster.row_seconds = 1e-7;
  const BlockGrid grid{.q_tokens = 640, .kv_tokens = 640, .block_tokens = 64};
  const CostModel model = CostInPicoseconds(cluster, grid);
  EXPECT_EQ(model.block, 20'971'520);  // 4·128·64² flops at 100 GFLOP/s
  EXPECT_EQ(model.row, 100'000);
}

TEST(Machine, CostsThatDoNotFitAreRefused) {
  const BlockGrid grid{.q_tokens = 640, .kv_tokens = 640, .block_tokens = 64};
  auto picoseconds = [&](double gflops, double row_seconds) {
    return CostInPicoseconds({.gflops = gflops, .row_seconds = row_seconds}, grid);
  };
  EXPECT_EQ(picoseconds(100, 1e6).row, 1'000'000'000'000'000'000);
  EXPECT_THROW(picoseconds(100, 1e9), InputError);
  EXPECT_THROW(picoseconds(100, NAN), InputError);
  EXPECT_THROW(picoseconds(1e-18, 0), InputError);

  // 12 lanes of 10 x 10 blocks on 7 ranks: 1200 blocks, 840 parts of rows.
  auto check = [&](const CostModel& model) { CheckCost(model, {.batch = 2, .heads = 6}, grid, 7); };
  constexpr int64_t kMost = int64_t{1} << 62;
  check({.block = kMost / 1200, .row = 0});
  check({.block = 0, .row = kMost / 840});
  EXPECT_THROW(check({.block = kMost / 1100, .row = 0}), InputError);
  EXPECT_THROW(check({.block = 1, .row = kMost / 800}), InputError);
  EXPECT_THROW(check({.block = -1, .row = 0}), InputError);

  BlockMask mask({.batch = 2, .heads = 6}, grid);
  EXPECT_THROW(MakePlan("ulysses", mask, {.ranks = 7, .cost = {.block = kMost / 1100, .row = 0}}),
               InputError);
}

TEST(Machine, RefusesWhatIsNoCluster) {
  auto refused = [](auto&& change) {
    Cluster cluster;
    change(cluster);
    EXPECT_THROW(CheckCluster(cluster, 2), InputError);
  };
  CheckCluster({}, 2);
  refused([](Cluster& c) { c.speeds = {1}; });
  refused([](Cluster& c) { c.speeds = {1, 0}; });
  refused([](Cluster& c) { c.speeds = {1, -1}; });
  refused([](Cluster& c) { c.gflops = 0; });
  refused([](Cluster& c) { c.node_of = {0, -1}; });
  refused([](Cluster& c) { c.node_of = {0, 2}; });
  refused([](Cluster& c) { c.node_of = {0, 0, 1}; });
  refused([](Cluster& c) { c.cable_bytes_per_second = -1; });
  refused([](Cluster& c) { c.link.bytes_per_second = 0; });
  refused([](Cluster& c) { c.wire.head_dim = 0; });
}

}  // namespace
}  // namespace equitile

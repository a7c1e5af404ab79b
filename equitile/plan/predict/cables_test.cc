#include "equitile/plan/predict/cables.h"

#include <gtest/gtest.h>

#include <vector>

namespace equitile {
namespace {

CableFlow Flow(double ready, int32_t from, int32_t to, std::vector<int64_t> messages) {
  CableFlow flow{.ready = ready, .from_node = from, .to_node = to};
  for (int64_t bytes : messages) flow.Add(bytes, ready);
  return flow;
}

// On three nodes with cables of 100 bytes per second.
std::vector<double> Carried(const std::vector<CableFlow>& flows) {
  Cluster cluster;
  cluster.node_of = {0, 0, 1, 2};
  cluster.cable_bytes_per_second = 100;
  Cables cables(cluster);
  EXPECT_TRUE(cables.any());
  for (const CableFlow& flow : flows) EXPECT_EQ(cables.Add(flow), 0);
  EXPECT_TRUE(cables.CarryAll());
  std::vector<double> carried;
  for (const CableFlow& flow : flows) carried.push_back(cables.Add(flow));
  EXPECT_FALSE(cables.CarryAll());  // nothing has moved
  return carried;
}

TEST(Cables, MessagesShareEvenly) {
  EXPECT_EQ(Carried({Flow(0, 0, 1, {100})}), (std::vector<double>{1}));
  // Together until the shorter one is through.
  EXPECT_EQ(Carried({Flow(0, 0, 1, {100}), Flow(0, 0, 1, {300})}), (std::vector<double>{2, 4}));
  // One is half through when the other comes.
  EXPECT_EQ(Carried({Flow(0.5, 0, 1, {100}), Flow(0, 0, 1, {100})}), (std::vector<double>{2, 1.5}));
  // One comes long after the other.
  EXPECT_EQ(Carried({Flow(0, 0, 1, {100}), Flow(5, 0, 1, {100})}), (std::vector<double>{1, 6}));
  // Three messages of one rank beside one of another.
  EXPECT_EQ(Carried({Flow(0, 0, 1, {50, 50, 50}), Flow(0, 0, 1, {50})}),
            (std::vector<double>{2, 2}));
}

TEST(Cables, EveryNodeHasAWayOutAndAWayIn) {
  EXPECT_EQ(Carried({Flow(0, 0, 1, {100}), Flow(0, 1, 0, {100})}), (std::vector<double>{1, 1}));
  EXPECT_EQ(Carried({Flow(0, 0, 2, {100}), Flow(0, 1, 2, {100})}), (std::vector<double>{2, 2}));
  EXPECT_EQ(Carried({Flow(0, 0, 1, {100}), Flow(0, 0, 2, {100})}), (std::vector<double>{2, 2}));
  EXPECT_EQ(Carried({Flow(0, 0, 1, {100}), Flow(0, 1, 2, {100}), Flow(0, 2, 0, {100})}),
            (std::vector<double>{1, 1, 1}));
}

TEST(Cables, AreNoLimitUnlessKnown) {
  Cluster cluster;
  cluster.cable_bytes_per_second = 100;
  EXPECT_FALSE(Cables(cluster).any());  // no nodes
  cluster.node_of = {0, 0, 1};
  EXPECT_TRUE(Cables(cluster).any());
  cluster.cable_bytes_per_second = 0;
  EXPECT_FALSE(Cables(cluster).any());
}

}  // namespace
}  // namespace equitile

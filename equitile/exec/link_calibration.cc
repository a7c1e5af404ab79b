#include "equitile/exec/link_calibration.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "equitile/base/error.h"

namespace equitile {
namespace {

// Between this rank and `other`; both call.
class LinkTiming {
 public:
  LinkTiming(Communicator& comm, int32_t other) : comm_(comm), other_(other) {}

  Link Alone() {
    const double latency = Seconds(kSmall, 20), large = Seconds(kLarge, 4);
    return {.latency_seconds = latency,
            .bytes_per_second = static_cast<double>(kLarge) / std::max(large - latency, 1e-9)};
  }

  // Bytes per second of this pair, while others are busy: on average, not at best.
  double Rate() {
    constexpr int kRounds = 8;
    Exchange(kSmall);
    const double begin = comm_.Now();
    for (int round = 0; round < kRounds; ++round) Exchange(kLarge);
    return kRounds * static_cast<double>(kLarge) / std::max(comm_.Now() - begin, 1e-9);
  }

 private:
  static constexpr size_t kSmall = 64;
  static constexpr size_t kLarge = size_t{8} << 20;

  void Exchange(size_t bytes) {
    constexpr int kTag = 0;
    CommRequest receive = comm_.Receive(std::span(in_).first(bytes), other_, kTag);
    CommRequest send = comm_.Send(std::span<const std::byte>(out_).first(bytes), other_, kTag);
    comm_.Wait(send);
    comm_.Wait(receive);
  }
  double Seconds(size_t bytes, int rounds) {
    double seconds = 1e9;
    Exchange(bytes);
    for (int round = 0; round < rounds; ++round) {
      const double begin = comm_.Now();
      Exchange(bytes);
      seconds = std::min(seconds, comm_.Now() - begin);
    }
    return seconds;
  }

  Communicator& comm_;
  int32_t other_;
  std::vector<std::byte> out_ = std::vector<std::byte>(kLarge), in_ = out_;
};

struct RankPair {
  int32_t a = 0, b = 0;
};

// Ranks of two nodes, one with one: rank 0's node and the next.
std::vector<RankPair> PairsAcross(const std::vector<int32_t>& node_of) {
  std::vector<int32_t> here, there;
  for (int32_t rank = 0; rank < std::ssize(node_of); ++rank) {
    const int32_t node = node_of[static_cast<size_t>(rank)];
    if (node == 0) here.push_back(rank);
    if (node == 1) there.push_back(rank);
  }
  std::vector<RankPair> pairs;
  for (size_t i = 0; i < std::min(here.size(), there.size()); ++i)
    pairs.push_back({here[i], there[i]});
  return pairs;
}

// The first two ranks that share a node.
RankPair PairInside(const std::vector<int32_t>& node_of) {
  for (size_t a = 0; a < node_of.size(); ++a) {
    const auto b =
        std::find(node_of.begin() + static_cast<int64_t>(a) + 1, node_of.end(), node_of[a]);
    if (b != node_of.end())
      return {static_cast<int32_t>(a), static_cast<int32_t>(b - node_of.begin())};
  }
  EQ_CHECK(false, "every rank has a node of its own");
}

class LinkCalibration {
 public:
  LinkCalibration(Communicator& comm, Machine& machine) : comm_(comm), machine_(machine) {}

  void Measure() {
    Cluster cluster;
    SetNodes(comm_.NodeOf(), cluster);
    machine_.node_of = cluster.node_of;
    if (machine_.node_of.empty()) {
      Alone("network", {0, comm_.size() - 1});
      return;
    }
    const std::vector<RankPair> pairs = PairsAcross(machine_.node_of);
    const Link network = Alone("network", pairs.front());
    Alone("node", PairInside(machine_.node_of));
    if (pairs.size() > 1) Together(pairs, network);
  }

 private:
  // Collective; everybody's figure is a's.
  Link Alone(const char* name, RankPair pair) {
    comm_.Barrier();
    Link link;
    if (comm_.rank() == pair.a) link = LinkTiming(comm_, pair.b).Alone();
    if (comm_.rank() == pair.b) LinkTiming(comm_, pair.a).Alone();
    comm_.Broadcast(std::as_writable_bytes(std::span(&link, 1)), pair.a);
    machine_.links.push_back({.name = name, .link = link});
    return link;
  }

  void Together(const std::vector<RankPair>& pairs, const Link& network) {
    // Below this share of what the links would carry, they share something.
    constexpr double kShared = 0.8;
    comm_.Barrier();
    double rate = 0;
    for (const auto& [a, b] : pairs) {
      if (comm_.rank() == a) rate = LinkTiming(comm_, b).Rate();
      if (comm_.rank() == b) LinkTiming(comm_, a).Rate();
    }
    comm_.AllReduce(std::span(&rate, 1), Reduce::kSum);
    if (rate > kShared * static_cast<double>(pairs.size()) * network.bytes_per_second) return;
    machine_.links.push_back(
        {.name = "cable",
         .link = {.latency_seconds = network.latency_seconds, .bytes_per_second = rate}});
  }

  Communicator& comm_;
  Machine& machine_;
};

}  // namespace

void MeasureLinks(Communicator& comm, Machine& machine) {
  LinkCalibration(comm, machine).Measure();
}

}  // namespace equitile

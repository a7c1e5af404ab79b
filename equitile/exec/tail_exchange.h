// Means of blocks for lanes whose skipped blocks count (Tail::kMean): sums over a block's keys and
// values, made where its tokens are at home, brought to every rank that computes rows of the lane.
// Sums are exact, so a block that lies on several homes has the same mean as one that does not.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/thread_pool.h"
#include "equitile/comm/communicator.h"
#include "equitile/kernel/attention/attention.h"
#include "equitile/plan/core/home_map.h"
#include "equitile/plan/core/program.h"

namespace equitile {

// One rank's part of the Program's Cargo::kMeans.
struct TailRoutes {
  struct Block {
    int32_t lane = 0, block = 0;
    friend auto operator<=>(const Block&, const Block&) = default;
  };
  struct Message {
    int32_t peer = 0;
    std::vector<int32_t> blocks;  // sends: into `home`; receives: into the table of means
  };
  std::vector<Block> home;  // with tokens here that somebody needs
  std::vector<Message> sends, receives;
  std::vector<std::pair<int32_t, int32_t>> stays;  // (of home, of the table)
  std::vector<int32_t> lanes;  // whose rows are computed here, ascending: the table is
  int64_t kv_blocks = 0;       //   [lanes][kv_blocks]

  bool Any() const { return !home.empty() || !lanes.empty(); }
};
TailRoutes MakeTailRoutes(const Program& program, const HomeMap& homes, int32_t rank);

// The exchange itself; its memory serves all layers.
class TailExchange {
 public:
  struct Call {
    const TailRoutes* routes = nullptr;
    const Problem* problem = nullptr;
    const HomeMap* homes = nullptr;
    int64_t head_dim = 0;
    TokenSource k, v;
    std::span<const int32_t* const> orders;  // position -> token by lane, or empty
  };
  // Collective. Throws InputError where a key or value cannot be summed.
  void Run(const Call& call, Communicator& comm, ThreadPool& pool);

  // [lanes of the problem] after Run: where the kernel finds the means.
  std::span<const LaneMeans> means() const { return means_; }
  int64_t bytes_sent() const { return bytes_sent_; }
  int64_t bytes_received() const { return bytes_received_; }
  int64_t Bytes() const;  // of memory

 private:
  void SumHome(const Call& call, int32_t rank, ThreadPool& pool);
  void Finish(const Call& call);

  std::vector<double> home_sums_;              // [home blocks][k, v][head_dim]
  std::vector<double> sums_;                   // [table][k, v][head_dim]
  std::vector<float> floats_;                  // the same, divided
  std::vector<std::vector<double>> out_, in_;  // messages
  std::vector<LaneMeans> means_;
  int64_t bytes_sent_ = 0, bytes_received_ = 0;
};

}  // namespace equitile

// Means of strips of queries and keys, brought from their homes to the rank that makes a lane's
// mask. Strips are global: which tokens form one follows from the lane's order alone, so every
// number of ranks sees the same means.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/thread_pool.h"
#include "equitile/comm/communicator.h"
#include "equitile/kernel/rows/pooling.h"
#include "equitile/kernel/rows/strips.h"
#include "equitile/model/wan/self_attention.h"
#include "equitile/plan/core/home_map.h"
#include "equitile/plan/core/plan.h"

namespace equitile {

// One per rank; its buffers serve all layers and steps.
class StripPool {
 public:
  // problem: lanes, tokens, orders and homes; ranks are comm's. wanted: lanes whose masks are made,
  // ascending. comm and pool must outlive it.
  StripPool(Problem problem, std::span<const int64_t> wanted, int64_t head_dim, Communicator& comm,
            ThreadPool& pool);

  // Collective. Throws InputError, naming the layer, where a query or key cannot be pooled.
  void Gather(const SelfAttentionCall& call);

  // Lanes whose masks are made here, ascending, and their means after Gather.
  std::span<const int64_t> lanes() const { return LanesOf(comm_.rank()); }
  StripMeans MeansOf(size_t index) const;  // of lanes()[index]

 private:
  // What one rank sends to one maker: for each of the maker's lanes, Q then K; means of the strips
  // that lie wholly on the rank, or sums over the rank's part of all strips.
  std::span<const int64_t> LanesOf(int32_t maker) const {
    return lanes_of_[static_cast<size_t>(maker)];
  }
  int64_t PartBytes(int32_t from, int64_t lane) const;
  int64_t MessageBytes(int32_t from, int32_t to) const;
  Range HomeStrips(int32_t rank, int64_t lane) const;
  void Pool(const SelfAttentionCall& call);
  bool PoolStrip(const RowProducer& rows, int64_t lane, int64_t strip, std::byte* part);
  void Unpack(int32_t from, const std::byte* message);
  void FinishSums();
  bool IsWhole(int64_t lane) const { return order_of_lane_[static_cast<size_t>(lane)] == nullptr; }

  Problem problem_;
  HomeMap homes_;
  int64_t head_dim_, strips_;
  Communicator& comm_;
  ThreadPool& pool_;
  std::vector<std::vector<int32_t>> orders_;              // position -> token, of the orders in use
  std::vector<const int32_t*> order_of_lane_;             // null: strips lie whole on their homes
  std::vector<std::vector<int64_t>> lanes_of_;            // [makers] ascending
  std::vector<std::vector<std::byte>> sends_, receives_;  // [ranks]
  std::vector<float> means_;                              // [lanes()][q, k][strips][head_dim]
  std::vector<double> sums_;                              // the same, of lanes that are not whole
};

}  // namespace equitile

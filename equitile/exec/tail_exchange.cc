#include "equitile/exec/tail_exchange.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/exec/token_rows.h"
#include "equitile/kernel/rows/pooling.h"

namespace equitile {
namespace {

constexpr int32_t kTag = Communicator::kMaxTag - 2;  // far from the tags of stages

TailRoutes::Message& MessageTo(std::vector<TailRoutes::Message>& messages, int32_t peer) {
  if (messages.empty() || messages.back().peer != peer) messages.push_back({peer, {}});
  return messages.back();
}

std::span<const std::byte> BytesOf(const std::vector<double>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace

TailRoutes MakeTailRoutes(const Program& program, const HomeMap& homes, int32_t rank) {
  TailRoutes routes;
  routes.kv_blocks = program.problem.grid.KvBlocks();
  std::map<TailRoutes::Block, int32_t> home;
  std::map<int32_t, std::vector<int32_t>> from;  // blocks of the table by home
  if (program.stages.empty()) return routes;
  for (const Transfer& transfer : program.TransfersOf(program.stages.front().inputs)) {
    if (transfer.cargo != Cargo::kMeans) continue;
    for (const LaneBlocks& item : program.BlocksOf(transfer.blocks)) {
      if (transfer.to == rank) routes.lanes.push_back(item.lane);
      for (int32_t block = item.begin; block < item.end; ++block) {
        const auto place =
            static_cast<int32_t>((std::ssize(routes.lanes) - 1) * routes.kv_blocks + block);
        homes.ForEachPart(Side::kKey, item.lane, {block, block + 1}, [&](int32_t at, int64_t) {
          int32_t own = -1;
          if (at == rank) {
            const auto [entry, is_new] =
                home.try_emplace({item.lane, block}, static_cast<int32_t>(routes.home.size()));
            if (is_new) routes.home.push_back({item.lane, block});
            own = entry->second;
          }
          if (at == rank && transfer.to == rank) {
            routes.stays.emplace_back(own, place);
          } else if (at == rank) {
            MessageTo(routes.sends, transfer.to).blocks.push_back(own);
          } else if (transfer.to == rank) {
            from[at].push_back(place);
          }
        });
      }
    }
  }
  for (auto& [peer, blocks] : from) routes.receives.push_back({peer, std::move(blocks)});
  return routes;
}

// Sums over those tokens of each block that are at home.
void TailExchange::SumHome(const Call& call, int32_t rank, ThreadPool& pool) {
  const int64_t dim = call.head_dim;
  home_sums_.assign(call.routes->home.size() * static_cast<size_t>(2 * dim), 0.0);
  std::atomic<bool> good{true};
  pool.ParallelFor(std::ssize(call.routes->home), [&](int64_t index, int) {
    const TailRoutes::Block block = call.routes->home[static_cast<size_t>(index)];
    const Lanes& lanes = call.problem->lanes;
    const Range home = call.homes->RankTokens(Side::kKey, rank, lanes.BatchOf(block.lane));
    const Range positions = call.problem->grid.KvBlockTokens(block.block);
    const int32_t* order =
        call.orders.empty() ? nullptr : call.orders[static_cast<size_t>(block.lane)];
    alignas(64) float rows[kStripTokens * kMaxHeadDim];
    double* sums = home_sums_.data() + index * 2 * dim;
    for (const TokenSource* source : {&call.k, &call.v}) {
      const auto add = [&](int64_t count) {
        if (!AddToPool(rows, count, dim, dim, sums)) good = false;
      };
      if (order == nullptr) {
        const Range own{std::max(home.begin, positions.begin), std::min(home.end, positions.end)};
        for (int64_t t = own.begin; t < own.end; t += kStripTokens) {
          const int64_t count = std::min(kStripTokens, own.end - t);
          ReadRows(*source, lanes, block.lane, t, count, dim, rows);
          add(count);
        }
      } else {  // a strip at a time as well, not a call for every row
        int64_t count = 0;
        for (int64_t p = positions.begin; p < positions.end; ++p) {
          if (!home.Contains(order[p])) continue;
          ReadRows(*source, lanes, block.lane, order[p], 1, dim, rows + count * dim);
          if (++count < kStripTokens) continue;
          add(std::exchange(count, 0));
        }
        if (count > 0) add(count);
      }
      sums += dim;
    }
  });
  if (!good) {
    throw InputError(
        "[exec] a key or value is beyond {} or not a number; without tails (tail=none) no sums are "
        "made of them",
        kPoolLimit);
  }
}

void TailExchange::Finish(const Call& call) {
  const auto dim = static_cast<size_t>(call.head_dim);
  floats_.resize(sums_.size());
  means_.assign(static_cast<size_t>(call.problem->lanes.Count()), {});
  const size_t per_lane = static_cast<size_t>(call.routes->kv_blocks) * 2 * dim;
  for (size_t slot = 0; slot < call.routes->lanes.size(); ++slot) {
    for (int64_t block = 0; block < call.routes->kv_blocks; ++block) {
      const auto tokens = static_cast<double>(call.problem->grid.KvBlockTokens(block).size());
      const size_t at = slot * per_lane + static_cast<size_t>(block) * 2 * dim;
      for (size_t i = at; i < at + 2 * dim; ++i) floats_[i] = static_cast<float>(sums_[i] / tokens);
    }
    const float* first = floats_.data() + slot * per_lane;
    means_[static_cast<size_t>(call.routes->lanes[slot])] = {
        .k = first, .v = first + dim, .stride = static_cast<int64_t>(2 * dim)};
  }
}

void TailExchange::Run(const Call& call, Communicator& comm, ThreadPool& pool) {
  const TailRoutes& routes = *call.routes;
  const auto block_numbers = static_cast<size_t>(2 * call.head_dim);
  SumHome(call, comm.rank(), pool);
  sums_.assign(routes.lanes.size() * static_cast<size_t>(routes.kv_blocks) * block_numbers, 0.0);
  out_.resize(routes.sends.size());
  in_.resize(routes.receives.size());
  bytes_sent_ = bytes_received_ = 0;
  std::vector<CommRequest> requests;
  for (size_t i = 0; i < in_.size(); ++i) {
    in_[i].resize(routes.receives[i].blocks.size() * block_numbers);
    bytes_received_ += static_cast<int64_t>(BytesOf(in_[i]).size());
    requests.push_back(
        comm.Receive(std::as_writable_bytes(std::span(in_[i])), routes.receives[i].peer, kTag));
  }
  for (size_t i = 0; i < out_.size(); ++i) {
    out_[i].clear();
    for (const int32_t block : routes.sends[i].blocks) {
      const double* from = home_sums_.data() + static_cast<size_t>(block) * block_numbers;
      out_[i].insert(out_[i].end(), from, from + block_numbers);
    }
    bytes_sent_ += static_cast<int64_t>(BytesOf(out_[i]).size());
    requests.push_back(comm.Send(BytesOf(out_[i]), routes.sends[i].peer, kTag));
  }
  const auto add = [&](int32_t place, const double* from) {
    double* to = sums_.data() + static_cast<size_t>(place) * block_numbers;
    for (size_t i = 0; i < block_numbers; ++i) to[i] += from[i];
  };
  for (const auto& [home, place] : routes.stays)
    add(place, home_sums_.data() + static_cast<size_t>(home) * block_numbers);
  for (CommRequest& request : requests) comm.Wait(request);
  for (size_t i = 0; i < in_.size(); ++i) {
    for (size_t b = 0; b < routes.receives[i].blocks.size(); ++b)
      add(routes.receives[i].blocks[b], in_[i].data() + b * block_numbers);
  }
  Finish(call);
}

int64_t TailExchange::Bytes() const {
  int64_t numbers = std::ssize(home_sums_) + std::ssize(sums_) + std::ssize(floats_) / 2;
  for (const auto* messages : {&out_, &in_}) {
    for (const std::vector<double>& message : *messages) numbers += std::ssize(message);
  }
  return numbers * static_cast<int64_t>(sizeof(double));
}

}  // namespace equitile

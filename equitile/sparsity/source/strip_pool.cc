#include "equitile/sparsity/source/strip_pool.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>

#include "equitile/base/error.h"
#include "equitile/sparsity/source/mask_makers.h"

namespace equitile {
namespace {

constexpr int32_t kTag = Communicator::kMaxTag - 1;  // far from the tags of self-attention

bool BordersCutNoStrip(const HomeMap& homes, int32_t ranks, int64_t items, int64_t tokens) {
  for (int32_t rank = 0; rank < ranks; ++rank) {
    for (int64_t item = 0; item < items; ++item) {
      const Range home = homes.RankTokens(Side::kQuery, rank, item);
      if (home.empty()) continue;
      if (home.begin % kStripTokens != 0) return false;
      if (home.end % kStripTokens != 0 && home.end != tokens) return false;
    }
  }
  return true;
}

}  // namespace

StripPool::StripPool(Problem problem, std::span<const int64_t> wanted, int64_t head_dim,
                     Communicator& comm, ThreadPool& pool)
    : problem_(std::move(problem)),
      homes_(problem_),
      head_dim_(head_dim),
      strips_(CeilDiv(problem_.grid.q_tokens, kStripTokens)),
      comm_(comm),
      pool_(pool) {
  EQ_CHECK(problem_.ranks == comm.size());
  EQ_CHECK(problem_.grid.q_tokens == problem_.grid.kv_tokens);
  const int64_t count = problem_.lanes.Count();
  order_of_lane_.assign(static_cast<size_t>(count), nullptr);
  const bool uncut =
      BordersCutNoStrip(homes_, problem_.ranks, problem_.lanes.batch, problem_.grid.q_tokens);
  std::vector<TokenOrder> known;
  orders_.reserve(static_cast<size_t>(count));  // lanes point into it
  lanes_of_.resize(static_cast<size_t>(problem_.ranks));
  for (const auto& [lane, maker] : MakersOf(homes_, problem_.lanes, wanted))
    lanes_of_[static_cast<size_t>(maker)].push_back(lane);
  for (const int64_t lane : wanted) {
    const TokenOrder order = problem_.OrderOf(lane);
    if (problem_.InHomeOrder(lane) && uncut) continue;
    const auto same = std::find(known.begin(), known.end(), order);
    if (same == known.end()) {
      known.push_back(order);
      if (problem_.InHomeOrder(lane)) {
        std::vector<int32_t>& natural = orders_.emplace_back();
        for (int32_t t = 0; t < problem_.grid.q_tokens; ++t) natural.push_back(t);
      } else {
        orders_.push_back(TokenAtPosition(problem_.token_grid, order));
      }
    }
    const auto index =
        static_cast<size_t>(std::find(known.begin(), known.end(), order) - known.begin());
    order_of_lane_[static_cast<size_t>(lane)] = orders_[index].data();
  }
  sends_.resize(static_cast<size_t>(problem_.ranks));
  receives_.resize(static_cast<size_t>(problem_.ranks));
  means_.resize(lanes().size() * static_cast<size_t>(2 * strips_ * head_dim_));
  if (!std::ranges::all_of(lanes(), [&](int64_t lane) { return IsWhole(lane); }))
    sums_.resize(means_.size());
}

Range StripPool::HomeStrips(int32_t rank, int64_t lane) const {
  if (!IsWhole(lane)) return {0, strips_};
  const Range home = homes_.RankTokens(Side::kQuery, rank, problem_.lanes.BatchOf(lane));
  if (home.empty()) return {0, 0};
  return {home.begin / kStripTokens, CeilDiv(home.end, kStripTokens)};
}

int64_t StripPool::PartBytes(int32_t from, int64_t lane) const {
  const int64_t number = IsWhole(lane) ? sizeof(float) : sizeof(double);
  return HomeStrips(from, lane).size() * head_dim_ * number;
}

int64_t StripPool::MessageBytes(int32_t from, int32_t to) const {
  int64_t bytes = 0;
  for (const int64_t lane : LanesOf(to)) bytes += 2 * PartBytes(from, lane);
  return bytes;
}

// The part of one strip that is at home here, at its place in the part.
bool StripPool::PoolStrip(const RowProducer& rows, int64_t lane, int64_t strip, std::byte* part) {
  constexpr int64_t kWidest = kMaxHeadDim;
  alignas(64) float row[kStripTokens * kWidest];
  alignas(64) double sums[kWidest] = {};
  const Range home = homes_.RankTokens(Side::kQuery, comm_.rank(), problem_.lanes.BatchOf(lane));
  const Range positions = {strip * kStripTokens,
                           std::min((strip + 1) * kStripTokens, problem_.grid.q_tokens)};
  const int32_t* order = order_of_lane_[static_cast<size_t>(lane)];
  if (order == nullptr) {
    rows(lane, positions.begin, positions.size(), row);
    if (!AddToPool(row, positions.size(), head_dim_, head_dim_, sums)) return false;
    auto* means =
        reinterpret_cast<float*>(part) + (strip - HomeStrips(comm_.rank(), lane).begin) * head_dim_;
    for (int64_t i = 0; i < head_dim_; ++i)
      means[i] = static_cast<float>(sums[i] / static_cast<double>(positions.size()));
    return true;
  }
  for (int64_t p = positions.begin; p < positions.end; ++p) {
    if (!home.Contains(order[p])) continue;
    rows(lane, order[p], 1, row);
    if (!AddToPool(row, 1, head_dim_, head_dim_, sums)) return false;
  }
  std::memcpy(part + strip * head_dim_ * static_cast<int64_t>(sizeof(double)), sums,
              static_cast<size_t>(head_dim_) * sizeof(double));
  return true;
}

void StripPool::Pool(const SelfAttentionCall& call) {
  struct Job {
    int64_t lane, strip;
    bool is_key;
    std::byte* part;
  };
  std::vector<Job> jobs;
  for (int32_t to = 0; to < problem_.ranks; ++to) {
    std::vector<std::byte>& message = sends_[static_cast<size_t>(to)];
    message.resize(static_cast<size_t>(MessageBytes(comm_.rank(), to)));
    std::byte* at = message.data();
    for (const int64_t lane : LanesOf(to)) {
      const Range strips = HomeStrips(comm_.rank(), lane);
      for (const bool is_key : {false, true}) {
        for (int64_t strip = strips.begin; strip < strips.end; ++strip)
          jobs.push_back({lane, strip, is_key, at});
        at += PartBytes(comm_.rank(), lane);
      }
    }
  }
  std::atomic<bool> good{true};
  constexpr int64_t kAtOnce = 8;
  pool_.ParallelFor(CeilDiv(std::ssize(jobs), kAtOnce), [&](int64_t task, int) {
    const int64_t end = std::min((task + 1) * kAtOnce, std::ssize(jobs));
    for (int64_t i = task * kAtOnce; i < end; ++i) {
      const Job& job = jobs[static_cast<size_t>(i)];
      if (!PoolStrip(job.is_key ? call.k : call.q, job.lane, job.strip, job.part)) good = false;
    }
  });
  uint64_t bad = good ? 0 : 1;
  comm_.AllReduce(std::span(&bad, 1), Reduce::kMax);
  if (bad == 0) return;
  throw InputError(
      "[sparsity] step {}, layer {}: a query or key is beyond {} or not a number; no mask can be "
      "predicted from it, use --attention dense",
      call.step + 1, call.layer, kPoolLimit);
}

void StripPool::Unpack(int32_t from, const std::byte* message) {
  for (size_t place = 0; place < lanes().size(); ++place) {
    const int64_t lane = lanes()[place];
    const Range strips = HomeStrips(from, lane);
    const int64_t numbers = strips.size() * head_dim_, bytes = PartBytes(from, lane);
    for (size_t side = 0; side < 2; ++side, message += bytes) {
      const size_t to = (2 * place + side) * static_cast<size_t>(strips_ * head_dim_);
      if (IsWhole(lane)) {
        if (bytes > 0) {
          std::memcpy(means_.data() + to + strips.begin * head_dim_, message,
                      static_cast<size_t>(bytes));
        }
        continue;
      }
      for (int64_t i = 0; i < numbers; ++i) {
        double part;
        std::memcpy(&part, message + static_cast<size_t>(i) * sizeof(double), sizeof(double));
        sums_[to + static_cast<size_t>(i)] += part;
      }
    }
  }
}

// Sums of all parts become means.
void StripPool::FinishSums() {
  const auto side_numbers = static_cast<size_t>(strips_ * head_dim_);
  for (size_t place = 0; place < lanes().size(); ++place) {
    if (IsWhole(lanes()[place])) continue;
    for (size_t i = 0; i < 2 * side_numbers; ++i) {
      const auto strip = static_cast<int64_t>(i % side_numbers) / head_dim_;
      const int64_t tokens = std::min(kStripTokens, problem_.grid.q_tokens - strip * kStripTokens);
      means_[2 * place * side_numbers + i] =
          static_cast<float>(sums_[2 * place * side_numbers + i] / static_cast<double>(tokens));
    }
  }
}

void StripPool::Gather(const SelfAttentionCall& call) {
  Pool(call);
  std::fill(sums_.begin(), sums_.end(), 0.0);
  std::vector<CommRequest> requests;
  for (int32_t other = 0; other < problem_.ranks; ++other) {
    if (other == comm_.rank()) continue;
    std::vector<std::byte>& from = receives_[static_cast<size_t>(other)];
    from.resize(static_cast<size_t>(MessageBytes(other, comm_.rank())));
    if (!from.empty()) requests.push_back(comm_.Receive(from, other, kTag));
    const std::vector<std::byte>& to = sends_[static_cast<size_t>(other)];
    if (!to.empty()) requests.push_back(comm_.Send(to, other, kTag));
  }
  Unpack(comm_.rank(), sends_[static_cast<size_t>(comm_.rank())].data());
  for (CommRequest& request : requests) comm_.Wait(request);
  for (int32_t other = 0; other < problem_.ranks; ++other) {
    if (other != comm_.rank()) Unpack(other, receives_[static_cast<size_t>(other)].data());
  }
  if (!sums_.empty()) FinishSums();
}

StripMeans StripPool::MeansOf(size_t index) const {
  const auto side_numbers = static_cast<size_t>(strips_ * head_dim_);
  const float* q = means_.data() + 2 * index * side_numbers;
  return {.grid = problem_.grid, .head_dim = head_dim_, .q = q, .k = q + side_numbers};
}

}  // namespace equitile

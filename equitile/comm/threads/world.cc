#include "equitile/comm/threads/world.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "equitile/base/timer.h"
#include "equitile/comm/reduce.h"

namespace equitile::threads {
namespace {

const char* Name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kBarrier:
      return "Barrier";
    case CollectiveKind::kReduceDouble:
      return "AllReduce of doubles";
    case CollectiveKind::kReduceUint64:
      return "AllReduce of integers";
    case CollectiveKind::kBroadcast:
      return "Broadcast";
  }
  return "";
}

template <typename Number>
void ReduceParts(std::vector<std::optional<CollectivePart>>& parts) {
  const auto data = [&](size_t rank) { return static_cast<Number*>(parts[rank]->data); };
  for (size_t i = 0; i < parts[0]->count; ++i) {
    Number value = data(0)[i];
    for (size_t r = 1; r < parts.size(); ++r) value = Combine(value, data(r)[i], parts[0]->op);
    for (size_t r = 0; r < parts.size(); ++r) data(r)[i] = value;
  }
}

void BroadcastParts(std::vector<std::optional<CollectivePart>>& parts) {
  const auto root = static_cast<size_t>(parts[0]->root);
  if (parts[0]->count == 0) return;
  for (size_t r = 0; r < parts.size(); ++r) {
    if (r != root) std::memcpy(parts[r]->data, parts[root]->data, parts[0]->count);
  }
}

void Execute(std::vector<std::optional<CollectivePart>>& parts) {
  switch (parts[0]->kind) {
    case CollectiveKind::kBarrier:
      return;
    case CollectiveKind::kReduceDouble:
      return ReduceParts<double>(parts);
    case CollectiveKind::kReduceUint64:
      return ReduceParts<uint64_t>(parts);
    case CollectiveKind::kBroadcast:
      return BroadcastParts(parts);
  }
}

}  // namespace

World::World(int32_t ranks) : parts_(static_cast<size_t>(ranks)) {
  for (int32_t r = 0; r < ranks; ++r) {
    ranks_.push_back(std::make_unique<RankState>());
    ranks_.back()->heard = NowSeconds();
  }
}

void World::Fail(RankFailure failure) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (failure_) return;
    failure_ = std::move(failure);
    failed_.store(true, std::memory_order_release);
  }
  for (const auto& rank : ranks_) rank->bell.Ring();
}

RankFailure World::Failure() const {
  const std::lock_guard lock(failure_mutex_);
  return *failure_;
}

void World::End(int32_t rank) {
  At(rank).ended = true;
  for (const auto& other : ranks_) other->bell.Ring();
}

uint64_t World::Enter(int32_t rank, const CollectivePart& part) {
  uint64_t ticket = 0;
  {
    const std::lock_guard lock(collective_mutex_);
    ticket = completed_.load(std::memory_order_relaxed) + 1;
    CheckAgreement(rank, part);
    if (Failed()) return ticket;
    parts_[static_cast<size_t>(rank)] = part;
    if (++arrived_ < size()) return ticket;
    Execute(parts_);
    std::fill(parts_.begin(), parts_.end(), std::nullopt);
    arrived_ = 0;
    completed_.store(ticket, std::memory_order_release);
  }
  for (int32_t r = 0; r < size(); ++r) {
    if (r != rank) At(r).bell.Ring();
  }
  return ticket;
}

void World::CheckAgreement(int32_t rank, const CollectivePart& part) {
  for (int32_t r = 0; r < size(); ++r) {
    const auto& other = parts_[static_cast<size_t>(r)];
    if (!other) continue;
    if (other->kind == part.kind && other->op == part.op && other->root == part.root &&
        other->count == part.count) {
      return;
    }
    Fail({rank, At(rank).LastPlace(), FailureKind::kFailed,
          fmt::format("[comm] calls {} of {}, rank {} calls {} of {}", Name(part.kind), part.count,
                      r, Name(other->kind), other->count)});
    return;
  }
}

void World::Leave(int32_t rank) {
  const std::lock_guard lock(collective_mutex_);
  auto& part = parts_[static_cast<size_t>(rank)];
  if (!part) return;
  part.reset();
  --arrived_;
}

}  // namespace equitile::threads

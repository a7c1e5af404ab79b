#include "equitile/plan/planners/fractional/fractional_ledger.h"

#include <algorithm>
#include <bit>

#include "equitile/base/error.h"

namespace equitile {
namespace {

Range Common(Range a, Range b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace

BlockHomes::BlockHomes(const Problem& problem, const HomeMap& homes)
    : lanes_(problem.lanes), ranks_(problem.ranks), kv_blocks_(problem.grid.KvBlocks()) {
  const int64_t block = problem.grid.block_tokens;
  auto cut = [&](Side side, int64_t blocks, std::vector<int32_t>& begin) {
    for (int64_t item = 0; item < lanes_.batch; ++item) {
      for (int32_t rank = 0; rank < ranks_; ++rank) {
        const int64_t token = homes.RankTokens(side, rank, item).begin;
        const bool past_end = token == homes.Tokens(side);  // the last block may be ragged
        begin.push_back(static_cast<int32_t>(past_end ? blocks : token / block));
      }
      begin.push_back(static_cast<int32_t>(blocks));
    }
  };
  cut(Side::kQuery, problem.grid.QBlocks(), q_begin_);
  cut(Side::kKey, kv_blocks_, kv_begin_);
  for (int64_t item = 0; item < lanes_.batch; ++item) {
    Range holders = {ranks_, 0};
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      const Range kv = Kv(item, rank);
      kv_home_.insert(kv_home_.end(), static_cast<size_t>(kv.size()), static_cast<int32_t>(rank));
      if (Q(item, rank).empty() && kv.empty()) continue;
      holders = {std::min(holders.begin, rank), rank + 1};
    }
    holders_.push_back(holders);
  }
  for (TokenOrder order : problem.orders) scattered_.push_back(order != problem.token_grid.home);
}

int64_t BlockHomes::QHome(int64_t item, int64_t q_block) const {
  const int32_t* begin = q_begin_.data() + item * (ranks_ + 1);
  return std::upper_bound(begin, begin + ranks_ + 1, q_block) - begin - 1;
}

Ledger::Ledger(const RowTable& rows, const BlockHomes& homes, const TrafficPrices& prices)
    : rows_(rows),
      homes_(homes),
      prices_(prices),
      work_(static_cast<size_t>(homes.Ranks())),
      bytes_(work_.size()),
      lanes_(static_cast<size_t>(rows.Lanes())),
      lanes_of_(work_.size()),
      scratch_(static_cast<size_t>(rows.Words())) {}

int64_t Ledger::MaxBytes() const { return *std::max_element(bytes_.begin(), bytes_.end()); }

Range Ledger::NodeOf(int64_t rank) const {
  if (prices_.node.empty()) return {rank, rank + 1};
  return prices_.node[static_cast<size_t>(rank)];
}

const Ledger::Holding* Ledger::Find(int64_t lane, int64_t rank) const {
  const std::vector<Holding>& holdings = lanes_[static_cast<size_t>(lane)].holdings;
  const auto at = std::lower_bound(holdings.begin(), holdings.end(), rank,
                                   [](const Holding& h, int64_t r) { return h.rank < r; });
  return at == holdings.end() || at->rank != rank ? nullptr : &*at;
}

Ledger::Holding& Ledger::HoldingOf(int64_t lane, int64_t rank) {
  std::vector<Holding>& holdings = lanes_[static_cast<size_t>(lane)].holdings;
  const auto at = std::lower_bound(holdings.begin(), holdings.end(), rank,
                                   [](const Holding& h, int64_t r) { return h.rank < r; });
  if (at != holdings.end() && at->rank == rank) return *at;
  lanes_of_[static_cast<size_t>(rank)].push_back(static_cast<int32_t>(lane));
  return *holdings.insert(at, {.rank = static_cast<int32_t>(rank),
                               .cost = 0,
                               .needed = std::vector<uint64_t>(scratch_.size())});
}

void Ledger::SetNeeded(int64_t lane, Holding& holding, const std::vector<uint64_t>& needed) {
  const int64_t item = homes_.ItemOf(lane), rank = holding.rank;
  const Range holders = homes_.HoldersOf(item);
  const uint64_t *now = needed.data(), *before = holding.needed.data();
  if (homes_.Scattered(lane)) {
    const Range all = {0, rows_.Words() * 64};
    bytes_[static_cast<size_t>(rank)] +=
        (CountBits(now, all) - CountBits(before, all)) * prices_.kv_block * prices_.far;
  } else if (holders.size() <= 4 * rows_.Words()) {
    for (int64_t home = holders.begin; home < holders.end; ++home) {
      const Range kv = homes_.Kv(item, home);
      const int64_t change = CountBits(now, kv) - CountBits(before, kv);
      if (change != 0) AddTraffic(rank, home, change * prices_.kv_block);
    }
  } else {  // few blocks per home: by the block
    for (int64_t w = 0; w < rows_.Words(); ++w) {
      for (uint64_t bits = now[w] ^ before[w]; bits != 0; bits &= bits - 1) {
        const int64_t bit = std::countr_zero(bits);
        const int64_t sign = (now[w] >> bit) & 1 ? 1 : -1;
        AddTraffic(rank, homes_.KvHome(item, w * 64 + bit), sign * prices_.kv_block);
      }
    }
  }
  holding.needed = needed;
}

void Ledger::MoveRows(int64_t lane, Range rows, int64_t rank, int64_t sign) {
  const int64_t cost = rows_.Cost(lane, rows), item = homes_.ItemOf(lane);
  work_[static_cast<size_t>(rank)] += sign * cost;
  HoldingOf(lane, rank).cost += sign * cost;
  if (homes_.Scattered(lane)) {
    bytes_[static_cast<size_t>(rank)] +=
        sign * rows_.Busy(lane, rows) * prices_.q_block * prices_.far;
    return;
  }
  for (int64_t home = homes_.QHome(item, rows.begin); home < homes_.Ranks(); ++home) {
    const Range q = homes_.Q(item, home);
    if (q.begin >= rows.end) break;
    AddTraffic(rank, home, sign * rows_.Busy(lane, Common(q, rows)) * prices_.q_block);
  }
}

std::vector<uint64_t>& Ledger::NeededWithout(int64_t lane, Range rows, int64_t rank) const {
  std::fill(scratch_.begin(), scratch_.end(), 0);
  for (const Segment& segment : lanes_[static_cast<size_t>(lane)].segments) {
    if (segment.rank != rank) continue;
    const Range before = {segment.rows.begin, std::min(segment.rows.end, rows.begin)};
    const Range after = {std::max(segment.rows.begin, rows.end), segment.rows.end};
    if (!before.empty()) rows_.AddNeeded(lane, before, scratch_.data());
    if (!after.empty()) rows_.AddNeeded(lane, after, scratch_.data());
  }
  return scratch_;
}

void Ledger::Take(int64_t lane, Range rows, int64_t rank) {
  if (rows.empty()) return;
  Holding& holding = HoldingOf(lane, rank);
  scratch_ = holding.needed;
  rows_.AddNeeded(lane, rows, scratch_.data());
  SetNeeded(lane, holding, scratch_);
  MoveRows(lane, rows, rank, +1);
  std::vector<Segment>& segments = lanes_[static_cast<size_t>(lane)].segments;
  if (!segments.empty() && segments.back().rank == rank) {
    segments.back().rows.end = rows.end;
  } else {
    segments.push_back({rows, static_cast<int32_t>(rank)});
  }
}

void Ledger::Give(int64_t lane, Range rows, int64_t from, int64_t to) {
  EQ_DCHECK(from != to && !rows.empty());
  SetNeeded(lane, HoldingOf(lane, from), NeededWithout(lane, rows, from));
  Holding& receiver = HoldingOf(lane, to);
  scratch_ = receiver.needed;
  rows_.AddNeeded(lane, rows, scratch_.data());
  SetNeeded(lane, receiver, scratch_);
  MoveRows(lane, rows, from, -1);
  MoveRows(lane, rows, to, +1);

  LaneBook& book = lanes_[static_cast<size_t>(lane)];
  Splice(book.segments, rows, static_cast<int32_t>(to));
  const auto is_from = [&](const auto& part) { return part.rank == from; };
  if (std::none_of(book.segments.begin(), book.segments.end(), is_from)) {
    std::erase_if(book.holdings, is_from);
    std::erase(lanes_of_[static_cast<size_t>(from)], static_cast<int32_t>(lane));
  }
}

void Ledger::Splice(std::vector<Segment>& segments, Range rows, int32_t to) {
  std::vector<Segment> spliced;
  spliced.reserve(segments.size() + 2);
  auto add = [&](Range part, int32_t rank) {
    if (part.empty()) return;
    if (!spliced.empty() && spliced.back().rank == rank) {
      spliced.back().rows.end = part.end;
    } else {
      spliced.push_back({part, rank});
    }
  };
  for (const Segment& segment : segments) {
    if (Common(segment.rows, rows).empty()) {
      add(segment.rows, segment.rank);
      continue;
    }
    add({segment.rows.begin, rows.begin}, segment.rank);
    add(rows, to);
    add({rows.end, segment.rows.end}, segment.rank);
  }
  segments = std::move(spliced);
}

int64_t Ledger::KvBytes(int64_t lane, const uint64_t* needed, int64_t rank) const {
  const int64_t item = homes_.ItemOf(lane);
  const int64_t total = CountBits(needed, {0, rows_.Words() * 64});
  if (homes_.Scattered(lane)) return prices_.kv_block * Foreign(total, 0, 0);
  const int64_t own = CountBits(needed, homes_.Kv(item, rank));
  const int64_t node =
      prices_.node.empty() ? own : CountBits(needed, homes_.Kv(item, NodeOf(rank)));
  return prices_.kv_block * Foreign(total, node, own);
}

int64_t Ledger::ForeignRows(int64_t lane, Range rows, int64_t rank) const {
  const int64_t item = homes_.ItemOf(lane), total = rows_.Busy(lane, rows);
  if (homes_.Scattered(lane)) return Foreign(total, 0, 0);
  const int64_t own = rows_.Busy(lane, Common(homes_.Q(item, rank), rows));
  const int64_t node =
      prices_.node.empty() ? own : rows_.Busy(lane, Common(homes_.Q(item, NodeOf(rank)), rows));
  return Foreign(total, node, own);
}

// Bytes of `rank` for rows that it computes instead of `other`.
int64_t Ledger::RowBytes(int64_t lane, Range rows, int64_t rank, int64_t other) const {
  const Range home = homes_.Q(homes_.ItemOf(lane), rank);
  const int64_t own = homes_.Scattered(lane) ? 0 : rows_.Busy(lane, Common(home, rows));
  return prices_.q_block * (ForeignRows(lane, rows, rank) - Weight(rank, other) * own);
}

int64_t Ledger::GainedBytes(int64_t lane, Range rows, int64_t from, int64_t to) const {
  std::fill(scratch_.begin(), scratch_.end(), 0);
  rows_.AddNeeded(lane, rows, scratch_.data());
  if (const Holding* held = Find(lane, to)) {
    for (size_t w = 0; w < scratch_.size(); ++w) scratch_[w] &= ~held->needed[w];
  }
  return RowBytes(lane, rows, to, from) + KvBytes(lane, scratch_.data(), to);
}

int64_t Ledger::SavedBytes(int64_t lane, Range rows, int64_t from, int64_t to) const {
  const Holding* held = Find(lane, from);
  std::vector<uint64_t>& needed = NeededWithout(lane, rows, from);
  for (size_t w = 0; w < needed.size(); ++w) needed[w] = held->needed[w] & ~needed[w];
  return RowBytes(lane, rows, from, to) + KvBytes(lane, needed.data(), from);
}

}  // namespace equitile

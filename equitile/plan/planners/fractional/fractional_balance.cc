#include "equitile/plan/planners/fractional/fractional_balance.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace equitile {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Lanes of a rank that are looked at closely, by a guess of their price. A rank holds three to six
// whole lanes in the usual case; where lanes lie at home it holds parts of many.
constexpr int64_t kLanesLookedAt = 4;
// Partners that are looked at: all of eight ranks, the extremes of many.
constexpr int64_t kPartners = 4;

}  // namespace

RowBalancer::RowBalancer(Ledger& ledger, const RowTable& rows, const BlockHomes& homes,
                         std::span<const double> target, double tolerance, ProbeBudget& budget)
    : ledger_(ledger),
      rows_(rows),
      homes_(homes),
      target_(target),
      tolerance_(tolerance),
      budget_(budget) {}

double RowBalancer::WorstRatio() const {
  double worst = 0;
  for (size_t r = 0; r < target_.size(); ++r) {
    worst =
        std::max(worst, static_cast<double>(ledger_.work(static_cast<int64_t>(r))) / target_[r]);
  }
  return worst;
}

bool RowBalancer::Even() const {
  for (int64_t rank = 0; rank < std::ssize(target_); ++rank) {
    if (Excess(rank) > Slack(rank)) return false;
  }
  return true;
}

// The ranks with the most (or least) work above their target, in that order.
std::vector<int64_t> RowBalancer::Extremes(bool most_loaded, int64_t count) const {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < std::ssize(target_); ++rank) {
    const double excess = Excess(rank);
    if (most_loaded ? excess > 0 : excess < 0) ranks.push_back(rank);
  }
  const auto before = [&](int64_t a, int64_t b) {
    const double x = Excess(a), y = Excess(b);
    if (x != y) return most_loaded ? x > y : x < y;
    return a < b;
  };
  const auto end = ranks.begin() + std::min<int64_t>(count, std::ssize(ranks));
  std::partial_sort(ranks.begin(), end, ranks.end(), before);
  ranks.erase(end, ranks.end());
  return ranks;
}

// Lanes of the rank from which that much work can be given for few bytes.
std::vector<int64_t> RowBalancer::CheapLanes(int64_t rank, double amount) const {
  const std::vector<int32_t>& held = ledger_.LanesOf(rank);
  std::vector<int64_t> lanes(held.begin(), held.end());
  if (std::ssize(lanes) <= kLanesLookedAt) return lanes;
  std::vector<double> price(lanes.size());
  std::vector<size_t> order(lanes.size());
  for (size_t i = 0; i < lanes.size(); ++i) {
    const double cost = static_cast<double>(rows_.LaneCost(lanes[i]));
    const double part = static_cast<double>(ledger_.Find(lanes[i], rank)->cost);
    const double moved = std::min(amount, part);
    const double busy = static_cast<double>(rows_.Busy(lanes[i], {0, rows_.QBlocks()}));
    const double rows = moved > 0 ? moved / cost * busy : 0;
    price[i] = moved > 0 ? (rows + rows_.GuessColumns(lanes[i], rows)) / moved : kInfinity;
    order[i] = i;
  }
  std::partial_sort(order.begin(), order.begin() + kLanesLookedAt, order.end(),
                    [&](size_t a, size_t b) {
                      return price[a] != price[b] ? price[a] < price[b] : lanes[a] < lanes[b];
                    });
  std::vector<int64_t> cheap;
  for (int64_t i = 0; i < kLanesLookedAt; ++i)
    cheap.push_back(lanes[order[static_cast<size_t>(i)]]);
  return cheap;
}

// Ranges of rows of about that cost: both ends of each segment, and what lies at the receiver's
// home or on its node, from both ends.
template <typename Visit>
void RowBalancer::ForEachOffer(int64_t from, int64_t to, double amount, bool at_least_a_row,
                               const Visit& visit) {
  const int64_t cost = static_cast<int64_t>(amount);
  for (int64_t lane : CheapLanes(from, amount)) {
    const int64_t item = homes_.ItemOf(lane);
    for (const Ledger::Segment& segment : ledger_.Segments(lane)) {
      if (segment.rank != from) continue;
      const Range rows = segment.rows;
      std::array<Range, 6> seen;
      size_t windows = 0;
      auto add = [&](Range window) {
        const auto end = seen.begin() + static_cast<int64_t>(windows);
        if (window.empty() || std::find(seen.begin(), end, window) != end) return;
        seen[windows++] = window;
        const int64_t window_cost = rows_.Cost(lane, window);
        if (window_cost > 0) visit(lane, window, window_cost);
      };
      auto add_both_ends = [&](Range inside, bool may_leave) {
        if (inside.empty()) return;
        const Range after = {inside.begin, may_leave ? rows.end : inside.end};
        const Range before = {may_leave ? rows.begin : inside.begin, inside.end};
        int64_t end = rows_.EndNearest(lane, after, cost);
        int64_t begin = rows_.BeginNearest(lane, before, cost);
        if (at_least_a_row && end == after.begin) ++end;
        if (at_least_a_row && begin == before.end) --begin;
        add({after.begin, end});
        add({begin, before.end});
      };
      add_both_ends(rows, false);
      if (homes_.Scattered(lane)) continue;
      auto inside = [&](Range home) {
        return Range{std::max(home.begin, rows.begin), std::min(home.end, rows.end)};
      };
      add_both_ends(inside(homes_.Q(item, to)), true);
      const Range node = ledger_.NodeOf(to);
      if (node.size() > 1) add_both_ends(inside(homes_.Q(item, node)), true);
    }
  }
}

RowBalancer::Offer RowBalancer::BestShed(int64_t from) {
  const double excess = Excess(from);
  Offer best{.score = kInfinity};
  for (int64_t to : Extremes(/*most_loaded=*/false, kPartners)) {
    const double amount = std::min(excess, -Excess(to));
    ForEachOffer(from, to, amount, true, [&](int64_t lane, Range rows, int64_t cost) {
      const double left = excess - static_cast<double>(cost);
      const double gained = Excess(to) + static_cast<double>(cost);
      if (std::max(left, gained) >= excess || !budget_.Spend()) return;
      const double bytes = static_cast<double>(ledger_.GainedBytes(lane, rows, from, to));
      double score = bytes / std::min(amount, static_cast<double>(cost));
      // A piece that leaves one of the two nearly as far off only if there is nothing else.
      if (gained > Slack(to) && std::max(left, gained) > excess / 2)
        score = 2 * std::abs(score) + 1;
      if (score < best.score) {
        best = {.lane = lane, .rows = rows, .from = from, .to = to, .cost = cost, .score = score};
      }
    });
  }
  return best;
}

void RowBalancer::Shed() {
  while (!budget_.Empty()) {
    int64_t from = 0;
    for (int64_t rank = 1; rank < std::ssize(target_); ++rank) {
      if (RelativeExcess(rank) > RelativeExcess(from)) from = rank;
    }
    if (Excess(from) <= Slack(from)) return;
    const Offer best = BestShed(from);
    if (best.IsNone()) return;
    Apply(best);
  }
}

RowBalancer::Offer RowBalancer::BestFill(int64_t to, const std::vector<int64_t>& donors) {
  // Weight of the bytes of both against those of the busier one: without it ties are decided
  // blindly, with more the busier one gets too many.
  constexpr double kBoth = 0.2;
  const double lack = -Excess(to);
  Offer best{.score = kInfinity};
  auto look = [&](int64_t from, double amount) {
    ForEachOffer(from, to, amount, false, [&](int64_t lane, Range rows, int64_t cost) {
      if (!budget_.Spend()) return;
      const double gained = static_cast<double>(ledger_.GainedBytes(lane, rows, from, to));
      const double saved = static_cast<double>(ledger_.SavedBytes(lane, rows, from, to));
      // Whoever is still short will need another piece of about the same price; a receiver that
      // gathers leftovers one of every few.
      const double another = std::max(0.0, gained);
      const double missing = lack - static_cast<double>(cost);
      const double donor_missing = static_cast<double>(cost) - Excess(from);
      double to_bytes = static_cast<double>(ledger_.bytes(to)) + gained;
      double from_bytes = static_cast<double>(ledger_.bytes(from)) - saved;
      if (missing > 2 * Slack(to))
        to_bytes += another * std::max(1.0, missing / static_cast<double>(cost));
      if (donor_missing > 2 * Slack(from)) from_bytes += another;
      double score = std::max(to_bytes, from_bytes) + kBoth * (to_bytes + from_bytes);
      if (missing > 2 * Slack(to)) score += kBoth * to_bytes;
      if (missing < -Slack(to)) score += to_bytes * -missing / target_[static_cast<size_t>(to)];
      if (score < best.score) {
        best = {.lane = lane, .rows = rows, .from = from, .to = to, .cost = cost, .score = score};
      }
    });
  };
  for (int64_t from : donors) {
    const double spare = Excess(from);
    look(from, std::min(lack, spare));
    if (spare < lack) look(from, lack);
  }
  return best;
}

void RowBalancer::Fill() {
  std::vector<bool> done(target_.size(), false);
  while (!budget_.Empty()) {
    int64_t to = -1;
    for (int64_t rank = 0; rank < std::ssize(target_); ++rank) {
      if (done[static_cast<size_t>(rank)] || Excess(rank) >= -Slack(rank)) continue;
      if (to < 0 || Excess(rank) < Excess(to)) to = rank;
    }
    if (to < 0) return;
    std::vector<int64_t> donors = Extremes(/*most_loaded=*/true, kPartners);
    std::erase_if(donors, [&](int64_t rank) { return done[static_cast<size_t>(rank)]; });
    const Offer best = BestFill(to, donors);
    if (!best.IsNone()) Apply(best);
    if (best.IsNone() || Excess(to) >= -Slack(to)) done[static_cast<size_t>(to)] = true;
  }
}

std::vector<Range> RowBalancer::PartsOf(int64_t lane, int64_t rank) const {
  std::vector<Range> parts;
  for (const Ledger::Segment& segment : ledger_.Segments(lane)) {
    if (segment.rank == rank) parts.push_back(segment.rows);
  }
  return parts;
}

// The best that `from`, the rank with the most bytes, can do by handing its part of the lane to
// `to`.
RowBalancer::Trade RowBalancer::BestTrade(int64_t lane, int64_t from, int64_t to) {
  // Where rows are too coarse for the tolerance, no trade may make the worst rank worse, nor break
  // the promise on a rank that is faster than that one.
  const double worst = WorstRatio() - 1, longest = static_cast<double>(rows_.LongestRow());
  const auto limit = [&](int64_t rank) {
    return std::max(Slack(rank), std::min(longest, worst * target_[static_cast<size_t>(rank)]));
  };
  const double from_limit = limit(from), to_limit = limit(to);
  const int64_t cost = ledger_.Find(lane, from)->cost;
  int64_t from_bytes = ledger_.bytes(from), to_bytes = ledger_.bytes(to);
  for (Range rows : PartsOf(lane, from)) {
    budget_.Spend(2);
    from_bytes -= ledger_.SavedBytes(lane, rows, from, to);
    to_bytes += ledger_.GainedBytes(lane, rows, from, to);
  }
  Trade best{.lane = lane, .from = from, .to = to, .back = {}, .bytes = ledger_.bytes(from)};
  auto fits = [&](int64_t back_cost) {
    const double net = static_cast<double>(cost - back_cost);
    return Excess(from) - net <= from_limit && Excess(to) + net <= to_limit;
  };
  if (fits(0)) best.bytes = std::min(best.bytes, std::max(from_bytes, to_bytes));
  ForEachOffer(
      to, from, static_cast<double>(cost), false,
      [&](int64_t other, Range rows, int64_t back_cost) {
        if (other == lane || !fits(back_cost) || !budget_.Spend(2)) return;
        const int64_t bytes = std::max(from_bytes + ledger_.GainedBytes(other, rows, to, from),
                                       to_bytes - ledger_.SavedBytes(other, rows, to, from));
        if (bytes >= best.bytes) return;
        best.bytes = bytes;
        best.back = {.lane = other, .rows = rows, .from = to, .to = from, .cost = back_cost};
      });
  return best;
}

// Makes the trade; takes it back unless the books say that the largest number of bytes falls.
bool RowBalancer::Make(const Trade& trade) {
  const int64_t most = ledger_.MaxBytes();
  const std::vector<Range> parts = PartsOf(trade.lane, trade.from);
  for (Range rows : parts) ledger_.Give(trade.lane, rows, trade.from, trade.to);
  if (!trade.back.IsNone()) Apply(trade.back);
  const int64_t now = ledger_.MaxBytes();
  if (now < most || (now == most && ledger_.bytes(trade.from) < most)) return true;
  const Offer& back = trade.back;
  if (!back.IsNone()) ledger_.Give(back.lane, back.rows, back.to, back.from);
  for (Range rows : parts) ledger_.Give(trade.lane, rows, trade.to, trade.from);
  return false;
}

bool RowBalancer::RelieveOnce() {
  std::vector<int64_t> order(target_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return ledger_.bytes(a) < ledger_.bytes(b); });
  const int64_t busiest = order.back();
  std::vector<Trade> trades;
  for (int32_t lane : ledger_.LanesOf(busiest)) {
    constexpr int64_t kMostParts = 2;
    if (std::ssize(PartsOf(lane, busiest)) > kMostParts) continue;
    if (ledger_.Find(lane, busiest)->cost == 0) continue;
    for (int64_t i = 0; i < std::min(kPartners, std::ssize(order) - 1) && !budget_.Empty(); ++i) {
      const Trade trade = BestTrade(lane, busiest, order[static_cast<size_t>(i)]);
      if (trade.bytes < ledger_.bytes(busiest)) trades.push_back(trade);
    }
  }
  std::stable_sort(trades.begin(), trades.end(),
                   [](const Trade& a, const Trade& b) { return a.bytes < b.bytes; });
  // The estimates leave out what ranks send as homes of K/V; the best few are enough.
  constexpr size_t kTries = 4;
  for (size_t i = 0; i < std::min(kTries, trades.size()); ++i) {
    if (Make(trades[i])) return true;
  }
  return false;
}

void RowBalancer::Relieve() {
  while (!budget_.Empty() && RelieveOnce()) {
  }
}

void RowBalancer::Enforce() {
  const double longest = static_cast<double>(rows_.LongestRow());
  for (int64_t from = 0; from < std::ssize(target_); ++from) {
    while (Excess(from) > longest) {
      const int64_t to = Extremes(/*most_loaded=*/false, 1).front();
      const int64_t lane = ledger_.LanesOf(from).back();
      const std::vector<Ledger::Segment>& segments = ledger_.Segments(lane);
      const auto segment = std::find_if(segments.begin(), segments.end(),
                                        [&](const auto& s) { return s.rank == from; });
      const Range rows = segment->rows;
      const int64_t amount = static_cast<int64_t>(std::min(Excess(from), -Excess(to)));
      const int64_t end = std::max(rows_.EndWithin(lane, rows, amount), rows.begin + 1);
      ledger_.Give(lane, {rows.begin, end}, from, to);
    }
  }
}

}  // namespace equitile

#include "equitile/plan/planners/fractional/fractional.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "equitile/base/error.h"
#include "equitile/plan/core/home_map.h"
#include "equitile/plan/planners/fractional/fractional_balance.h"
#include "equitile/plan/planners/fractional/fractional_groups.h"
#include "equitile/plan/planners/fractional/fractional_ledger.h"
#include "equitile/plan/planners/fractional/fractional_line.h"
#include "equitile/plan/planners/fractional/fractional_pack.h"
#include "equitile/plan/planners/fractional/fractional_rows.h"

namespace equitile {
namespace {

// Ranks of a node that follow each other hold tokens that do; others count as nodes of their own.
std::vector<Range> NodeRuns(const std::vector<int32_t>& node_of) {
  std::vector<Range> runs(node_of.size());
  for (size_t first = 0, last = 0; first < node_of.size(); first = last) {
    while (last < node_of.size() && node_of[last] == node_of[first]) ++last;
    const Range run{static_cast<int64_t>(first), static_cast<int64_t>(last)};
    std::fill(runs.begin() + run.begin, runs.begin() + run.end, run);
  }
  return runs;
}

TrafficPrices PricesOf(const Problem& problem, const Cluster& cluster) {
  const int64_t tokens = problem.grid.block_tokens;
  TrafficPrices prices{.q_block = tokens * (cluster.wire.QBytes() + cluster.wire.OBytes()),
                       .kv_block = tokens * cluster.wire.KvBytes(),
                       .node = {}};
  if (!cluster.node_of.empty()) {
    prices.node = NodeRuns(cluster.node_of);
    // In eighths, so that weighted bytes stay integers.
    const double ratio = cluster.node_link.bytes_per_second / cluster.FarBytesPerSecond();
    prices.near = 8;
    prices.far = std::max<int64_t>(1, std::llround(8 * std::min(ratio, 1000.0)));
  }
  return prices;
}

class Partitioner {
 public:
  Partitioner(const Problem& problem, const BlockMask& mask, std::span<const int32_t> row_blocks,
              const CostModel& model, const Cluster& cluster, const FractionalOptions& options)
      : problem_(problem),
        row_blocks_(row_blocks),
        cluster_(cluster),
        options_(options),
        home_map_(problem),
        rows_(mask, row_blocks, model),
        homes_(problem, home_map_),
        prices_(PricesOf(problem, cluster)),
        target_(static_cast<size_t>(problem.ranks)) {
    double speeds = 0, total = 0;
    for (int32_t rank = 0; rank < problem.ranks; ++rank) speeds += cluster.Speed(rank);
    for (int64_t lane = 0; lane < rows_.Lanes(); ++lane) {
      total += static_cast<double>(rows_.LaneCost(lane));
    }
    for (int32_t rank = 0; rank < problem.ranks; ++rank) {
      target_[static_cast<size_t>(rank)] = total * cluster.Speed(rank) / speeds;
    }
    total_ = total;
  }

  std::vector<RowRuns> Run() {
    if (total_ > 0 && problem_.ranks > 1) Search();
    std::vector<RowRuns> runs;
    for (int64_t lane = 0; lane < rows_.Lanes(); ++lane) runs.push_back(RunsOf(lane));
    return runs;
  }

  // Sets the stages of the runs that Run() gave.
  void SetStages(std::vector<RowRuns>& runs) const {
    if (!best_) return;
    const std::vector<LaneShare> shares = Shares();
    const std::vector<int32_t> groups =
        GroupShares(shares, problem_.ranks, cluster_.link.latency_seconds);
    auto share = shares.begin();  // by lane, then by rank
    for (size_t lane = 0; lane < runs.size(); ++lane) {
      const auto first = share;
      while (share != shares.end() && share->lane == static_cast<int32_t>(lane)) ++share;
      for (RowRun& run : runs[lane]) {
        const auto at = std::lower_bound(
            first, share, run.rank, [](const LaneShare& s, int32_t rank) { return s.rank < rank; });
        // A rank that only has empty rows of the lane has no share of it.
        const bool found = at != share && at->rank == run.rank;
        run.stage = found ? groups[static_cast<size_t>(at - shares.begin())] : 0;
      }
    }
  }

 private:
  enum class Strategy { kShed, kFill };
  struct Solution {
    Ledger ledger;
    double ratio;
    int64_t bytes;
  };

  // A probe reads about this many words besides the rows: found by timing.
  static constexpr int64_t kProbeOverheadWords = 250;
  // Words that all probes together may read: a few times the mask, and for small ones as many as a
  // hundredth of the layer's attention pays for, up to a millisecond or two. Half of that was as
  // good on 160 small masks, but not on one_h24_b64; half of kFewWords left half as much imbalance
  // again.
  static constexpr int64_t kBudgetMasks = 4, kFewWords = 200'000, kManyWords = 4'000'000;
  static constexpr double kWordSeconds = 4e-10, kShareOfAttention = 0.01;
  // More ranks need more probes, up to this many.
  static constexpr int32_t kRanksToPayFor = 256;
  static constexpr uint64_t kVariants = 8;

  // Tries a few starts and both ways to even them out, as long as the budget lasts.
  void Search() {
    const int64_t mask_words = rows_.Lanes() * rows_.QBlocks() * rows_.Words();
    const int64_t kept = std::accumulate(row_blocks_.begin(), row_blocks_.end(), int64_t{0});
    const double attention =
        static_cast<double>(kept) * cluster_.BlockSeconds(problem_.grid) / problem_.ranks;
    const auto affordable = static_cast<int64_t>(std::clamp(
        attention * kShareOfAttention / kWordSeconds, double{kFewWords}, double{kManyWords}));
    const int64_t words = std::max(affordable, kBudgetMasks * mask_words);
    ProbeBudget budget{words / (kProbeOverheadWords + rows_.ProbeWords())};
    budget.left += budget.left * std::min(problem_.ranks, kRanksToPayFor) / 128;
    const int64_t share = budget.left / 4;
    if (problem_.ranks > rows_.Lanes() / 2) {
      for (const bool one_lane_each : {true, false}) TryLine(one_lane_each, budget, share);
    }
    if (problem_.ranks > 4 * rows_.Lanes()) return;
    const std::vector<int64_t> local_lanes = LanesBetterAtHome();
    for (uint64_t variant = 0; variant < kVariants && !budget.Empty(); ++variant) {
      for (int64_t at_home : AtHomeCounts(std::ssize(local_lanes))) {
        const std::span<const int64_t> lanes(local_lanes.data(), static_cast<size_t>(at_home));
        budget.Spend(StartProbes());
        const bool even = Try(Start(lanes, variant), budget, share);
        // Whole lanes and nothing to gain at home: no other start moves fewer bytes.
        if (budget.Empty() || (even && local_lanes.empty())) return;
      }
    }
  }

  // What dealing out the lanes costs: found by timing.
  int64_t StartProbes() const { return rows_.Lanes() * rows_.Lanes() / 4; }

  void TryLine(bool one_lane_each, ProbeBudget& budget, int64_t share) {
    const double least = *std::min_element(target_.begin(), target_.end());
    const double most = 1 + static_cast<double>(rows_.LongestRow()) / least;
    const std::vector<LinePiece> pieces = CutLine(rows_, target_, most, one_lane_each);
    if (pieces.empty()) return;
    Ledger ledger(rows_, homes_, prices_);
    for (const LinePiece& piece : pieces) ledger.Take(piece.lane, piece.rows, piece.rank);
    TryBalancing(ledger, Strategy::kShed, budget, share);
  }

  // Whether the start was even already, so that strategies make no difference.
  bool Try(const Ledger& start, ProbeBudget& budget, int64_t share) {
    const bool even = TryBalancing(start, Strategy::kShed, budget, share);
    if (!even && !budget.Empty()) TryBalancing(start, Strategy::kFill, budget, share);
    return even;
  }

  bool TryBalancing(Ledger ledger, Strategy strategy, ProbeBudget& budget, int64_t share) {
    ProbeBudget own{std::min(share, budget.left)};
    budget.left -= own.left;
    RowBalancer balancer(ledger, rows_, homes_, target_, options_.tolerance, own);
    const bool even = balancer.Even();
    if (!even && strategy == Strategy::kFill) balancer.Fill();
    balancer.Shed();
    balancer.Enforce();
    balancer.Relieve();
    budget.left += own.left;
    const double ratio = balancer.WorstRatio();
    const int64_t bytes = ledger.MaxBytes();
    if (!best_ || Better(ratio, bytes)) best_.emplace(Solution{std::move(ledger), ratio, bytes});
    return even;
  }

  // Fewer bytes, unless that costs balance. Where rows are too coarse for the tolerance, a
  // hundredth of work weighs as much as a fifth of the bytes.
  bool Better(double ratio, int64_t bytes) const {
    constexpr double kBytesPerImbalance = 20;
    const double even = 1 + 2 * options_.tolerance;
    if ((ratio <= even) != (best_->ratio <= even)) return ratio <= even;
    auto price = [&](double r, int64_t b) {
      return (1 + kBytesPerImbalance * (std::max(r, even) - even)) * static_cast<double>(b);
    };
    return price(ratio, bytes) < price(best_->ratio, best_->bytes);
  }

  // Lanes for which all ranks together move fewer bytes when every rank computes its own tokens'
  // rows than when the lane is dealt out; the best first.
  std::vector<int64_t> LanesBetterAtHome() const {
    if (!options_.heads_at_home) return {};
    const Ledger empty(rows_, homes_, prices_);
    std::vector<uint64_t> needed(static_cast<size_t>(rows_.Words()));
    std::vector<double> gain(static_cast<size_t>(rows_.Lanes()), 0);
    std::vector<int64_t> lanes;
    for (int64_t lane = 0; lane < rows_.Lanes(); ++lane) {
      if (homes_.Scattered(lane) || rows_.LaneCost(lane) == 0) continue;
      const int64_t item = homes_.ItemOf(lane);
      const Range holders = homes_.HoldersOf(item);
      int64_t at_home = 0;
      for (int64_t rank = holders.begin; rank < holders.end; ++rank) {
        std::fill(needed.begin(), needed.end(), 0);
        rows_.AddNeeded(lane, homes_.Q(item, rank), needed.data());
        at_home += empty.KvBytes(lane, needed.data(), rank);
      }
      // In as many pieces as it has shares of work.
      const double pieces =
          std::max(1.0, static_cast<double>(rows_.LaneCost(lane)) / (total_ / problem_.ranks));
      const double piece_rows = static_cast<double>(rows_.QBlocks()) / pieces;
      const double columns = pieces * rows_.GuessColumns(lane, piece_rows);
      const double busy = static_cast<double>(rows_.Busy(lane, {0, rows_.QBlocks()}));
      const double foreign = 1 - 1 / static_cast<double>(holders.size());
      const double dealt = foreign * static_cast<double>(prices_.far) *
                           (busy * static_cast<double>(prices_.q_block) +
                            columns * static_cast<double>(prices_.kv_block));
      gain[static_cast<size_t>(lane)] = dealt - static_cast<double>(at_home);
      if (gain[static_cast<size_t>(lane)] > 0) lanes.push_back(lane);
    }
    std::stable_sort(lanes.begin(), lanes.end(), [&](int64_t a, int64_t b) {
      return gain[static_cast<size_t>(a)] > gain[static_cast<size_t>(b)];
    });
    return lanes;
  }

  // How many of them to leave at home: none, all, or as many as make the rest divide evenly.
  std::vector<int64_t> AtHomeCounts(int64_t most) const {
    std::vector<int64_t> counts = {0};
    if (most > 0) counts.push_back(most);
    const int64_t rest = (rows_.Lanes() - most) % problem_.ranks;
    const int64_t dividing = rest == 0 ? most : most - (problem_.ranks - rest);
    if (dividing > 0 && dividing < most) counts.push_back(dividing);
    return counts;
  }

  Ledger Start(std::span<const int64_t> at_home, uint64_t variant) const {
    Ledger ledger(rows_, homes_, prices_);
    std::vector<bool> dealt(static_cast<size_t>(rows_.Lanes()), true);
    for (int64_t lane : at_home) {
      dealt[static_cast<size_t>(lane)] = false;
      const int64_t item = homes_.ItemOf(lane);
      const Range holders = homes_.HoldersOf(item);
      for (int64_t rank = holders.begin; rank < holders.end; ++rank) {
        ledger.Take(lane, homes_.Q(item, rank), rank);
      }
    }
    PackProblem pack;
    std::vector<int64_t> lanes;
    for (int64_t lane = 0; lane < rows_.Lanes(); ++lane) {
      if (!dealt[static_cast<size_t>(lane)]) continue;
      lanes.push_back(lane);
      pack.cost.push_back(rows_.LaneCost(lane));
      // The ranks that hold the batch item get a part of it for nothing. Homes that were given may
      // leave an item to few ranks; it is everybody's work.
      pack.eligible.push_back(problem_.homes.empty() ? homes_.HoldersOf(homes_.ItemOf(lane))
                                                     : Range{0, problem_.ranks});
    }
    for (int64_t rank = 0; rank < problem_.ranks; ++rank) {
      pack.room.push_back(target_[static_cast<size_t>(rank)] -
                          static_cast<double>(ledger.work(rank)));
    }
    pack.most_lanes = CeilDiv(std::ssize(lanes), problem_.ranks);
    pack.close_enough = std::clamp(options_.tolerance / 4 * total_ / problem_.ranks, 1.0,
                                   std::max(1.0, static_cast<double>(rows_.LongestRow())));
    pack.variant = variant;
    const std::vector<int32_t> owner = PackLanes(pack);
    for (size_t i = 0; i < lanes.size(); ++i) {
      ledger.Take(lanes[i], {0, rows_.QBlocks()}, owner[i]);
    }
    return ledger;
  }

  std::vector<LaneShare> Shares() const {
    const Ledger& ledger = best_->ledger;
    const double weighted_rate = !prices_.node.empty() ? static_cast<double>(prices_.near) *
                                                             cluster_.node_link.bytes_per_second
                                                       : cluster_.link.bytes_per_second;
    const int64_t tokens = problem_.grid.block_tokens;
    const double q_seconds = static_cast<double>(tokens * cluster_.wire.QBytes()) / weighted_rate;
    const double o_seconds = static_cast<double>(tokens * cluster_.wire.OBytes()) / weighted_rate;
    const double block_seconds = cluster_.BlockSeconds(problem_.grid);
    std::vector<LaneShare> shares;
    for (int64_t lane = 0; lane < rows_.Lanes(); ++lane) {
      const int32_t* blocks = row_blocks_.data() + lane * rows_.QBlocks();
      const size_t first = shares.size();
      for (const Ledger::Holding& holding : ledger.HoldingsOf(lane)) {
        shares.push_back({.lane = static_cast<int32_t>(lane), .rank = holding.rank});
        shares.back().input_seconds =
            static_cast<double>(ledger.KvBytes(lane, holding.needed.data(), holding.rank)) /
            weighted_rate;
      }
      for (const Ledger::Segment& segment : ledger.Segments(lane)) {
        LaneShare& share = *std::lower_bound(
            shares.begin() + static_cast<int64_t>(first), shares.end(), segment.rank,
            [](const LaneShare& s, int32_t rank) { return s.rank < rank; });
        const Range rows = segment.rows;
        const double foreign = static_cast<double>(ledger.ForeignRows(lane, rows, segment.rank));
        share.input_seconds += foreign * q_seconds;
        share.output_seconds += foreign * o_seconds;
        const int64_t kept = std::accumulate(blocks + rows.begin, blocks + rows.end, int64_t{0});
        share.compute_seconds +=
            (static_cast<double>(kept) * block_seconds +
             static_cast<double>(rows_.Busy(lane, rows)) * cluster_.row_seconds) /
            cluster_.Speed(segment.rank);
      }
    }
    return shares;
  }

  RowRuns RunsOf(int64_t lane) const {
    const int64_t item = homes_.ItemOf(lane), q_blocks = rows_.QBlocks();
    RowRuns runs;
    auto add = [&](int64_t end, int64_t rank) {
      if (!runs.empty() && runs.back().rank == rank) {
        runs.back().end = static_cast<int32_t>(end);
      } else {
        runs.push_back({.end = static_cast<int32_t>(end), .rank = static_cast<int32_t>(rank)});
      }
    };
    auto add_home = [&](Range rows) {
      for (int64_t row = rows.begin; row < rows.end;) {
        const int64_t rank = homes_.QHome(item, row);
        row = std::min(rows.end, homes_.Q(item, rank).end);
        add(row, rank);
      }
    };
    if (!best_) {
      add_home({0, q_blocks});
      return runs;
    }
    for (const Ledger::Segment& segment : best_->ledger.Segments(lane)) {
      for (int64_t row = segment.rows.begin; row < segment.rows.end; ++row) {
        const bool busy = homes_.Scattered(lane) || rows_.Busy(lane, {row, row + 1}) > 0;
        if (busy) {
          add(row + 1, segment.rank);
        } else {
          add_home({row, row + 1});
        }
      }
    }
    return runs;
  }

  const Problem& problem_;
  std::span<const int32_t> row_blocks_;
  const Cluster& cluster_;
  FractionalOptions options_;
  HomeMap home_map_;
  RowTable rows_;
  BlockHomes homes_;
  TrafficPrices prices_;
  std::vector<double> target_;  // [ranks]
  double total_ = 0;
  std::optional<Solution> best_;
};

void CheckInputs(const Problem& problem, const BlockMask& mask, const Cluster& cluster) {
  EQ_CHECK(problem.lanes == mask.lanes() && problem.grid == mask.grid());
  CheckCluster(cluster, problem.ranks);
}

}  // namespace

std::vector<RowRuns> PartitionFractional(const Problem& problem, const BlockMask& mask,
                                         std::span<const int32_t> row_blocks,
                                         const CostModel& model, const Cluster& cluster,
                                         const FractionalOptions& options) {
  CheckInputs(problem, mask, cluster);
  return Partitioner(problem, mask, row_blocks, model, cluster, options).Run();
}

Plan PlanFractional(const Problem& problem, const BlockMask& mask,
                    std::span<const int32_t> row_blocks, const CostModel& model,
                    const Cluster& cluster, const FractionalOptions& options) {
  CheckInputs(problem, mask, cluster);
  Partitioner partitioner(problem, mask, row_blocks, model, cluster, options);
  std::vector<RowRuns> runs = partitioner.Run();
  partitioner.SetStages(runs);
  PlannerLabel label{.name = "fractional", .ulysses = 0, .ring = 0, .parameters = {}};
  label.parameters = {{"heads_at_home", options.heads_at_home ? "yes" : "no"},
                      {"tolerance", fmt::format("{}", options.tolerance)}};
  return MakeExchangePlan(problem, label, runs, /*needed_kv_only=*/true);
}

}  // namespace equitile

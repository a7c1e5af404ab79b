// Attention on N ranks beside one kernel call: inputs, the call on every rank, and the answer put
// together again. Shared by the room's tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "equitile/base/rng.h"
#include "equitile/comm/threads/run_ranks.h"
#include "equitile/exec/executor.h"
#include "equitile/exec/token_rows.h"
#include "equitile/exec/verification.h"
#include "equitile/plan/planners/planner.h"

namespace equitile::testing {

struct ExecCase {
  std::string name;
  Lanes lanes;
  BlockGrid grid;
  int64_t head_dim = 16;
  BlockMask mask;
  TokenGrid token_grid;
  std::vector<TokenOrder> orders;
  std::vector<Tail> tails = {};
  std::vector<int64_t> homes = {};  // as Problem::homes; for one number of ranks

  LaneMasks Masks() const {
    return LaneMasks({.blocks = mask, .token_grid = token_grid, .orders = orders, .tails = tails});
  }
};

// A random mask in which each block is kept with probability `density`.
inline BlockMask RandomMask(Lanes lanes, const BlockGrid& grid, double density, uint64_t seed) {
  BlockMask mask(lanes, grid);
  Rng rng(seed);
  for (int64_t lane = 0; lane < lanes.Count(); ++lane) {
    for (int64_t q = 0; q < mask.QBlocks(); ++q) {
      for (int64_t k = 0; k < mask.KvBlocks(); ++k) {
        if (rng.Uniform() < density) mask.Set(lane, q, k);
      }
    }
  }
  return mask;
}

struct ExecResult {
  std::vector<float> out;  // [batch][tokens][heads][head_dim]
  std::vector<float> lse;  // [heads][batch][tokens]
};

class ExecWorkload {
 public:
  explicit ExecWorkload(const ExecCase& test, uint64_t seed = 1) : test_(test) {
    const int64_t floats = test.lanes.batch * test.grid.q_tokens * test.lanes.heads * test.head_dim;
    for (auto* values : {&q_, &k_, &v_}) {
      const Rng rng(seed, stream_++);
      values->resize(static_cast<size_t>(floats));
      for (int64_t i = 0; i < floats; ++i)
        (*values)[static_cast<size_t>(i)] = rng.NormalAt(static_cast<uint64_t>(i));
    }
  }

  // No score, and no value, is larger.
  double MaxScore() const {
    return LargestNorm(q_, test_.head_dim) * LargestNorm(k_, test_.head_dim) * double{Scale()};
  }
  double MaxValue() const {
    double largest = 0;
    for (float value : v_) largest = std::max(largest, std::abs(double{value}));
    return largest;
  }

  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(test_.head_dim)); }
  PlanOptions Options(int32_t ranks) const {
    PlanOptions options;
    options.ranks = ranks;
    options.homes = test_.homes;
    options.cluster.wire.head_dim = test_.head_dim;
    return options;
  }
  ExecResult Empty() const {
    return {std::vector<float>(q_.size(), NAN),
            std::vector<float>(q_.size() / static_cast<size_t>(test_.head_dim), NAN)};
  }

  // One kernel call, without an executor.
  ExecResult OnOneRank(Compute compute = Compute::kF32) const {
    ExecResult result = Empty();
    ThreadPool pool(1);
    Workspace workspace;
    const Shape shape{test_.lanes.batch, test_.grid.q_tokens, test_.lanes.heads, test_.head_dim};
    const AttentionRows rows = AttentionRows::FromMask(test_.mask);
    const LaneOrders orders(CheckedProblem({.ranks = 1,
                                            .lanes = test_.lanes,
                                            .grid = test_.grid,
                                            .token_grid = test_.token_grid,
                                            .orders = test_.orders}));
    std::vector<float> lse(result.lse.size());
    AttentionArgs args;
    args.lanes = test_.lanes;
    args.grid = test_.grid;
    args.head_dim = test_.head_dim;
    args.scale = Scale();
    args.rows = &rows;
    args.q = ConstView(q_.data(), shape);
    args.k = ConstView(k_.data(), shape);
    args.v = ConstView(v_.data(), shape);
    args.q_order = args.kv_order = orders.ByLane();
    args.tails.lanes = test_.tails;
    args.compute = compute;
    args.out = View(result.out.data(), shape);
    args.lse = lse.data();
    Attention(args, pool, workspace);
    const int64_t tokens = test_.grid.q_tokens;
    for (int64_t lane = 0; lane < test_.lanes.Count(); ++lane) {
      const int64_t to =
          (test_.lanes.HeadOf(lane) * test_.lanes.batch + test_.lanes.BatchOf(lane)) * tokens;
      std::copy_n(lse.begin() + lane * tokens, tokens, result.lse.begin() + to);
    }
    return result;
  }

  // This rank's part of a run, into `result`; sources are producers that refuse foreign tokens.
  RunStats RunRank(Executor& executor, const Itinerary& part, ExecResult& result,
                   std::vector<RowMasses>* masses = nullptr) const {
    const HomeRows& home = part.home_rows;
    const int64_t row = test_.lanes.heads * test_.head_dim;
    auto produce = [&](const std::vector<float>& values) {
      return [&, row](int64_t lane, int64_t first, int64_t count, float* rows) {
        const Range own = home.TokensOf(test_.lanes.BatchOf(lane));
        EQ_CHECK(own.begin <= first && first + count <= own.end, "lane {}, token {}: not at home",
                 lane, first);
        const int64_t at = test_.lanes.BatchOf(lane) * test_.grid.q_tokens + first;
        for (int64_t t = 0; t < count; ++t)
          std::copy_n(values.begin() + (at + t) * row + test_.lanes.HeadOf(lane) * test_.head_dim,
                      test_.head_dim, rows + t * test_.head_dim);
      };
    };
    const auto q = produce(q_), k = produce(k_), v = produce(v_);
    // As callers have them: rows of home tokens only.
    std::vector<float> home_k(static_cast<size_t>(home.Count() * row)), out(home_k.size(), NAN),
        lse(static_cast<size_t>(home.Count() * test_.lanes.heads), NAN);
    auto global_row = [&](int64_t i) {
      const auto [item, token] = home.TokenOf(i);
      return item * test_.grid.q_tokens + token;
    };
    for (int64_t i = 0; i < home.Count(); ++i)
      std::copy_n(k_.begin() + global_row(i) * row, row, home_k.begin() + i * row);
    LayerCall call;
    call.layer = 0;
    call.scale = Scale();
    call.q = TokenSource(RowProducer(q));
    call.k = home.FormView()
                 ? TokenSource(home.Input(home_k.data(), test_.head_dim, row, test_.head_dim))
                 : TokenSource(RowProducer(k));
    call.v = TokenSource(RowProducer(v));
    call.out = out.data();
    call.lse = lse.data();
    call.masses = masses;
    const RunStats stats = executor.Run(part, call);
    const int64_t all = test_.lanes.batch * test_.grid.q_tokens;
    for (int64_t i = 0; i < home.Count(); ++i) {
      std::copy_n(out.begin() + i * row, row, result.out.begin() + global_row(i) * row);
      for (int64_t head = 0; head < test_.lanes.heads; ++head) {
        result.lse[static_cast<size_t>(head * all + global_row(i))] =
            lse[static_cast<size_t>(head * home.Count() + i)];
      }
    }
    return stats;
  }

  const ExecCase& test() const { return test_; }
  void SetKey(size_t index, float value) { k_[index] = value; }

 private:
  const ExecCase& test_;
  std::vector<float> q_, k_, v_;  // [batch][tokens][heads][head_dim]
  uint32_t stream_ = 0;
};

// The case's shapes: primes, ragged tails, rows that keep nothing, one dense head, orders per lane,
// two batch items, more ranks than heads.
inline std::vector<ExecCase> AwkwardCases() {
  std::vector<ExecCase> cases;
  auto add = [&](std::string name, Lanes lanes, int64_t tokens, int64_t block, int64_t head_dim,
                 double density, TokenGrid token_grid = {}, std::vector<TokenOrder> orders = {}) {
    ExecCase test{.name = std::move(name),
                  .lanes = lanes,
                  .grid = {.q_tokens = tokens, .kv_tokens = tokens, .block_tokens = block},
                  .head_dim = head_dim,
                  .mask = {},
                  .token_grid = token_grid,
                  .orders = std::move(orders)};
    test.mask = RandomMask(lanes, test.grid, density, cases.size() + 1);
    cases.push_back(std::move(test));
  };
  add("Primes", {.batch = 1, .heads = 7}, 1009, 32, 24, 0.4);
  add("RaggedTail", {.batch = 1, .heads = 4}, 64 * 9 + 1, 64, 16, 0.5);
  add("WideBlocks", {.batch = 1, .heads = 3}, 1500, 256, 40, 0.6);
  add("OneHead", {.batch = 1, .heads = 1}, 777, 16, 8, 0.3);
  add("BatchOfTwo", {.batch = 2, .heads = 5}, 500, 48, 32, 0.35);
  add("FewTokens", {.batch = 1, .heads = 2}, 70, 16, 16, 0.7);
  add("Orders", {.batch = 2, .heads = 4}, 5 + 4 * 9 * 7 + 3, 32, 16, 0.5,
      {.frames = 4, .height = 9, .width = 7, .text_before = 5, .text_after = 3},
      {TokenOrder::kFHW, TokenOrder::kHWF, TokenOrder::kWHF, TokenOrder::kFHW, TokenOrder::kFWH,
       TokenOrder::kFHW, TokenOrder::kHWF, TokenOrder::kFHW});
  add("OneDenseHead", {.batch = 1, .heads = 6}, 640, 64, 16, 0.15);
  for (int64_t q = 0; q < cases.back().mask.QBlocks(); ++q) {
    for (int64_t k = 0; k < cases.back().mask.KvBlocks(); ++k) cases.back().mask.Set(2, q, k);
  }
  add("EmptyRows", {.batch = 1, .heads = 5}, 700, 32, 16, 0.1);
  for (int64_t k = 0; k < cases.back().mask.KvBlocks(); ++k) {
    for (int64_t q = 0; q < 5; ++q) cases.back().mask.Set(1, q, k, false);
    for (int64_t q = 0; q < cases.back().mask.QBlocks(); ++q) cases.back().mask.Set(3, q, k, false);
  }
  add("Nothing", {.batch = 1, .heads = 3}, 300, 32, 16, 0.0);
  return cases;
}

// Homes as nobody would cut them: borders inside strips, ranks without tokens, one that has all, no
// two batch items alike.
inline std::vector<std::vector<int64_t>> AwkwardHomes(Lanes lanes, int64_t tokens, int32_t ranks) {
  auto cut = [&](auto&& first_token) {
    std::vector<int64_t> homes;
    for (int64_t item = 0; item < lanes.batch; ++item) {
      for (int64_t rank = 0; rank < ranks; ++rank) homes.push_back(first_token(item, rank));
    }
    return homes;
  };
  return {
      cut([&](int64_t, int64_t rank) { return std::min(tokens, CeilDiv(tokens, ranks) * rank); }),
      cut([&](int64_t, int64_t rank) { return std::min(tokens, rank * 13); }),
      cut([&](int64_t item, int64_t rank) { return rank > item % ranks ? tokens : 0; }),
      cut([&](int64_t item, int64_t rank) {
        return (rank - rank % 2) * (tokens - 7 * item) / ranks;
      }),
  };
}

}  // namespace equitile::testing

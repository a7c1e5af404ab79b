// Q, K and V of a made-up layer, dealt out to the homes of any number of ranks, for tests of
// sources.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/base/rng.h"
#include "equitile/comm/solo/solo.h"
#include "equitile/comm/threads/run_ranks.h"
#include "equitile/plan/core/home_map.h"
#include "equitile/sparsity/source/mask_source.h"
#include "equitile/sparsity/source/source_context.h"

namespace equitile::testing {

struct LayerCase {
  Lanes lanes{.batch = 2, .heads = 3};
  TokenGrid token_grid{.frames = 5, .height = 6, .width = 7};
  int64_t block_tokens = 32;
  int64_t head_dim = 16;
  int64_t layers = 2;
  int64_t steps = 6;
  float key_scale = 2.0f;

  int64_t Tokens() const { return token_grid.Tokens(); }
  BlockGrid Grid() const {
    return {.q_tokens = Tokens(), .kv_tokens = Tokens(), .block_tokens = block_tokens};
  }
};

class LayerWorld {
 public:
  explicit LayerWorld(const LayerCase& test, uint64_t seed = 1) : test_(test) {
    const int64_t numbers = test.layers * test.lanes.Count() * test.Tokens() * test.head_dim;
    for (uint32_t side = 0; side < 3; ++side) {
      const Rng rng(seed, side);
      for (int64_t i = 0; i < numbers; ++i)
        values_[side].push_back((side == 1 ? test.key_scale : 1.0f) *
                                rng.NormalAt(static_cast<uint64_t>(i)));
    }
  }

  // [layers][lanes][tokens][head_dim]
  std::vector<float>& values(size_t side) { return values_[side]; }
  const float* Row(size_t side, int64_t layer, int64_t lane, int64_t token) const {
    return values_[side].data() +
           ((layer * test_.lanes.Count() + lane) * test_.Tokens() + token) * test_.head_dim;
  }

  SourceContext Context(Communicator& comm, ThreadPool& pool) const {
    SourceContext context{.comm = &comm,
                          .pool = &pool,
                          .lanes = test_.lanes,
                          .grid = test_.Grid(),
                          .token_grid = test_.token_grid,
                          .head_dim = test_.head_dim,
                          .layers = test_.layers,
                          .sigmas = {}};
    for (int64_t step = 0; step <= test_.steps; ++step) {
      context.sigmas.push_back(1.0f - static_cast<float>(step) / static_cast<float>(test_.steps));
    }
    return context;
  }

  // Calls body(call) with producers that refuse tokens of other homes. out: [home
  // tokens][heads][dim].
  void Call(Communicator& comm, int32_t step, int32_t layer, float* out,
            const std::function<void(const SelfAttentionCall&)>& body) const {
    const HomeMap homes({.ranks = comm.size(),
                         .lanes = test_.lanes,
                         .grid = test_.Grid(),
                         .token_grid = {},
                         .orders = {}});
    auto producer = [&, layer](size_t side) {
      return [&, layer, side](int64_t lane, int64_t first, int64_t count, float* rows) {
        const Range home = homes.RankTokens(Side::kQuery, comm.rank(), test_.lanes.BatchOf(lane));
        EQ_CHECK(count == 0 || (home.begin <= first && first + count <= home.end),
                 "lane {}: tokens {} + {} are not at home", lane, first, count);
        std::copy_n(Row(side, layer, lane, first), count * test_.head_dim, rows);
      };
    };
    auto q = producer(0), k = producer(1), v = producer(2);
    body({.step = step,
          .layer = layer,
          .sigma = 0.5,
          .scale = 1.0f / std::sqrt(static_cast<float>(test_.head_dim)),
          .q = RowProducer(q),
          .k = RowProducer(k),
          .v = RowProducer(v),
          .out = out});
  }

  const LayerCase& test() const { return test_; }

 private:
  LayerCase test_;
  std::vector<float> values_[3];
};

// Mean softmax mass of each key block for a query block, in double; blocks of an order of tokens.
inline std::vector<double> ExactMasses(const LayerWorld& world, int64_t layer, int64_t lane,
                                       int64_t q_block, TokenOrder order = TokenOrder::kFHW) {
  const LayerCase& test = world.test();
  const BlockGrid grid = test.Grid();
  const std::vector<int32_t> token = TokenAtPosition(test.token_grid, order);
  std::vector<double> masses(static_cast<size_t>(grid.KvBlocks()), 0.0);
  const Range rows = grid.QBlockTokens(q_block);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    std::vector<double> weights;
    for (int64_t key = 0; key < test.Tokens(); ++key) {
      double score = 0;
      for (int64_t i = 0; i < test.head_dim; ++i) {
        score +=
            static_cast<double>(world.Row(0, layer, lane, token[static_cast<size_t>(row)])[i]) *
            static_cast<double>(world.Row(1, layer, lane, token[static_cast<size_t>(key)])[i]);
      }
      weights.push_back(std::exp(score / std::sqrt(static_cast<double>(test.head_dim))));
    }
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (int64_t key = 0; key < test.Tokens(); ++key) {
      masses[static_cast<size_t>(key / grid.block_tokens)] +=
          weights[static_cast<size_t>(key)] / total / static_cast<double>(rows.size());
    }
  }
  return masses;
}

inline void OnRanks(int32_t ranks, const std::function<void(Communicator&)>& body) {
  if (ranks == 1) {
    SoloCommunicator solo;
    body(solo);
  } else {
    RunRanks(ranks, [&](Communicator& comm) { body(comm); });
  }
}

}  // namespace equitile::testing

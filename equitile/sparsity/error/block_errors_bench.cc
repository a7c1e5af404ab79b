// What does it cost to judge a lane, over attention that computes all its blocks? Rates are lanes per second, of one thread; the
// lane is wan-mini's of 49 frames of 256x256, and one of the 1.3B shape.
#include <benchmark/benchmark.h>

#include <vector>

#include "equitile/base/rng.h"
#include "equitile/pattern/token_grid.h"
#include "equitile/sparsity/error/block_errors.h"

namespace equitile {
namespace {

struct Shape {
  TokenGrid grid;
  int64_t head_dim;
};
const Shape kShapes[] = {{{.frames = 13, .height = 16, .width = 16}, 32},
                         {{.frames = 8, .height = 32, .width = 32}, 128}};

struct Lane {
  explicit Lane(const Shape& shape)
      : at(TokenAtPosition(shape.grid, TokenOrder::kHWF)),
        grid{.q_tokens = std::ssize(at), .kv_tokens = std::ssize(at)},
        head_dim(shape.head_dim) {
    const Rng rng(3);
    const uint64_t count = at.size() * static_cast<uint64_t>(head_dim);
    for (std::vector<float>* values : {&q, &k, &v}) {
      const auto first = static_cast<uint64_t>(values - &q) * count;
      for (uint64_t i = 0; i < count; ++i) values->push_back(rng.NormalAt(first + i));
    }
  }
  void Begin(BlockErrors& errors) const {
    BlockErrors::Lane lane{.keys = {.k = k.data(),
                                    .v = v.data(),
                                    .token_at_position = at.data(),
                                    .grid = grid,
                                    .head_dim = head_dim},
                           .queries = {},
                           .scale = 0.1f,
                           .tail = Tail::kMean,
                           .key_step = 4,
                           .value_dims = 32};
    for (const int64_t position : SampledPositions(grid, 4))
      lane.queries.push_back(q.data() + at[static_cast<size_t>(position)] * head_dim);
    errors.Begin(std::move(lane), 4);
  }

  std::vector<int32_t> at;
  BlockGrid grid;
  int64_t head_dim;
  std::vector<float> q, k, v;
};

void BM_Pack(benchmark::State& state) {
  const Lane lane(kShapes[state.range(0)]);
  ThreadPool pool(1);
  BlockJudge judge(pool);
  BlockErrors errors;
  BlockErrors* const all[] = {&errors};
  for (auto _ : state) {
    lane.Begin(errors);
    judge.Pack(all);
  }
}
BENCHMARK(BM_Pack)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);

// range(1): rows of blocks, from the first on.
void BM_Judge(benchmark::State& state) {
  const Lane lane(kShapes[state.range(0)]);
  ThreadPool pool(1);
  BlockJudge judge(pool);
  BlockErrors errors;
  BlockErrors* const all[] = {&errors};
  lane.Begin(errors);
  judge.Pack(all);
  std::vector<int64_t> blocks;
  for (int64_t i = 0; i < std::min(state.range(1), lane.grid.QBlocks()); ++i) blocks.push_back(i);
  for (auto _ : state) judge.Judge(all, blocks);
}
BENCHMARK(BM_Judge)->Args({0, 8})->Args({0, 44})->Args({0, 52})->Args({1, 128})->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace equitile

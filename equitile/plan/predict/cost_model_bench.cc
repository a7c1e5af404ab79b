// How long do the costs of all rows take, compared with one popcount per word? 40 heads x 1184^2
// blocks.
#include <benchmark/benchmark.h>

#include "equitile/base/error.h"
#include "equitile/pattern/mask_hash.h"
#include "equitile/plan/predict/cost_model.h"

namespace equitile {
namespace {

BlockMask BigMask() {
  BlockMask mask({.batch = 1, .heads = 40}, {.q_tokens = 1184 * 64, .kv_tokens = 1184 * 64});
  uint64_t state = 1;
  for (int64_t lane = 0; lane < 40; ++lane) {
    for (int64_t row = 0; row < 1184; ++row) {
      for (int64_t w = 0; w < 18; ++w) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        mask.MutableRow(lane, row)[static_cast<size_t>(w)] = state ^ (state >> 29);
      }
    }
  }
  return mask;
}

void BM_RowBlocks(benchmark::State& state) {
  const BlockMask mask = BigMask();
  int64_t sum = 0;
  for (int32_t row : RowBlocks(mask)) sum += row;
  EQ_CHECK(sum == mask.Kept());
  for (auto _ : state) benchmark::DoNotOptimize(RowBlocks(mask));
}
BENCHMARK(BM_RowBlocks)->Unit(benchmark::kMicrosecond);

void BM_RowBlocksByPopcount(benchmark::State& state) {
  const BlockMask mask = BigMask();
  for (auto _ : state) {
    int64_t sum = 0;
    for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
      for (int64_t row = 0; row < mask.QBlocks(); ++row) sum += mask.RowCount(lane, row);
    }
    benchmark::DoNotOptimize(sum);
  }
}
BENCHMARK(BM_RowBlocksByPopcount)->Unit(benchmark::kMicrosecond);

void BM_HashMask(benchmark::State& state) {
  const BlockMask mask = BigMask();
  for (auto _ : state) benchmark::DoNotOptimize(HashMask(mask));
}
BENCHMARK(BM_HashMask)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace equitile

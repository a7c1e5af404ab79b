// Is drawing a mask cheap next to what is measured with it? 40 heads of 1184 blocks are the largest
// Wan2.1 layer.
#include <benchmark/benchmark.h>

#include "equitile/pattern/synthetic_mask.h"

namespace equitile {
namespace {

void BM_MakeSyntheticMask(benchmark::State& state) {
  SyntheticSpec spec = DefaultSpec(static_cast<SyntheticKind>(state.range(0)));
  spec.blocks = 1184;
  for (auto _ : state) benchmark::DoNotOptimize(MakeSyntheticMask(spec));
  state.SetLabel(SyntheticSpecText(spec));
}
BENCHMARK(BM_MakeSyntheticMask)->DenseRange(0, 4)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace equitile

// How much faster than the db-SP reference is a dbsp plan (costs, plan and score, one thread), and
// how good are the layouts?
//   bench_plan --benchmark_filter=^dbsp/      counter x_reference: the reference's seconds over
//   ours, per stored plan
#include <benchmark/benchmark.h>

#include <map>
#include <string>

#include "equitile/base/error.h"
#include "equitile/plan/dbsp.h"
#include "equitile/plan/dbsp_vectors_testing.h"

namespace equitile {
namespace {

const BlockMask& VectorMask(const std::string& name) {
  static std::map<std::string, BlockMask> masks;
  auto [it, added] = masks.try_emplace(name);
  if (added) it->second = testing::ReadVectorMask(name);
  return it->second;
}

// A mask of the size of a Wan 14B layer: bands of a width that differs between lanes.
BlockMask LargeMask() {
  constexpr int64_t kHeads = 40, kBlocks = 1184;
  BlockMask mask({1, kHeads}, {kBlocks * 64, kBlocks * 64, 64});
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t i = 0; i < kBlocks; ++i) {
      for (int64_t j = 0; j < kBlocks; ++j) {
        if ((i * 7 + j * 13 + h * 29) % 64 < 8 + h % 24 || std::abs(i - j) < 30 + 10 * (h % 7))
          mask.Set(h, i, j);
      }
    }
  }
  return mask;
}

constexpr double kReferenceSecondsLarge =
    1.07;  // 40 heads, 1184² blocks, 4x2: one thread of an AVX-512 machine

void TimeDbsp(benchmark::State& state, const BlockMask& mask, int64_t ulysses, int64_t ring,
              const DbspOptions& options, double reference_seconds) {
  for (auto _ : state) {
    const DbspLayout layout = MakeDbsp(mask, ulysses, ring, options);
    benchmark::DoNotOptimize(ScoreLayout(layout).crit);
  }
  state.counters["x_reference"] =
      benchmark::Counter(reference_seconds, benchmark::Counter::kIsIterationInvariantRate);
}

const bool registered = [] {
  for (const testing::StoredPlan& plan : testing::ReadStoredPlans()) {
    const std::string name =
        fmt::format("dbsp/{}/{}x{}/{}", plan.mask, plan.ulysses, plan.ring, plan.variant);
    benchmark::RegisterBenchmark(name.c_str(), [plan](benchmark::State& state) {
      TimeDbsp(state, VectorMask(plan.mask), plan.ulysses, plan.ring, plan.Options(),
               plan.reference_seconds);
    })->Unit(benchmark::kMicrosecond);
  }
  benchmark::RegisterBenchmark("dbsp/large_h40_b1184/4x2/v4r2", [](benchmark::State& state) {
    TimeDbsp(state, LargeMask(), 4, 2, {}, kReferenceSecondsLarge);
  })->Unit(benchmark::kMicrosecond);
  return true;
}();

}  // namespace
}  // namespace equitile

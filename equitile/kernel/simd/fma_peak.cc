#include "equitile/kernel/simd/fma_peak.h"

#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/base/timer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/simd/fma_peak.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/simd/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// Flops per round: more chains than latency x throughput, fewer than registers.
inline constexpr size_t kChains = 12;

double RunFmaChains(int64_t rounds, float multiplier, float* sink) {
  VF chain[kChains];
  EQ_UNROLL
  for (size_t i = 0; i < kChains; ++i) chain[i] = hn::Set(DF(), static_cast<float>(i) * multiplier);
  const VF m = hn::Set(DF(), multiplier);
  for (int64_t round = 0; round < rounds; ++round) {
    EQ_UNROLL
    for (size_t i = 0; i < kChains; ++i) chain[i] = hn::MulAdd(chain[i], m, m);
  }
  VF sum = chain[0];
  EQ_UNROLL
  for (size_t i = 1; i < kChains; ++i) sum = hn::Add(sum, chain[i]);
  *sink = hn::GetLane(sum);
  return 2.0 * static_cast<double>(kChains * kVecFloats) * static_cast<double>(rounds);
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(RunFmaChains);
}  // namespace

double FmaPeakWindow(ThreadPool& pool, double seconds) {
  constexpr float kMultiplier = 0.75f;  // the chains settle at 3: no overflow, no denormals
  constexpr int64_t kRounds = 20000;
  std::vector<double> flops(static_cast<size_t>(pool.Threads()), 0.0);
  std::atomic<int> ready{0};
  std::atomic<bool> sane{true};
  const double start = NowSeconds();
  std::vector<double> begin(flops.size()), end(flops.size());
  pool.Run([&](int thread) {
    const auto t = static_cast<size_t>(thread);
    // All together: chains that run while another thread still wakes up would see a higher clock.
    ready.fetch_add(1);
    while (ready.load() < pool.Threads() && NowSeconds() - start < 0.001) {
    }
    begin[t] = NowSeconds();
    float sink = 0.0f;
    do {
      flops[t] += HWY_DYNAMIC_DISPATCH(RunFmaChains)(kRounds, kMultiplier, &sink);
      if (!(std::fabs(sink) < 1e6f)) sane = false;
      end[t] = NowSeconds();
    } while (end[t] - begin[t] < seconds);
  });
  EQ_CHECK(sane.load(), "multiply-add chains diverged");
  double total = 0.0;
  for (size_t t = 0; t < flops.size(); ++t) total += flops[t] / (end[t] - begin[t]);
  return total * 1e-9;
}

}  // namespace equitile
#endif  // HWY_ONCE

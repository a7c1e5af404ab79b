// What does one call of a pool cost when its threads are awake, and when they sleep?
#include <benchmark/benchmark.h>

#include <chrono>
#include <thread>

#include "equitile/base/thread_pool.h"

namespace equitile {
namespace {

void BM_RunAwake(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) pool.Run([](int thread) { benchmark::DoNotOptimize(thread); });
}
BENCHMARK(BM_RunAwake)->Arg(1)->Arg(2)->Arg(8)->UseRealTime();

void BM_RunAsleep(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    state.PauseTiming();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    state.ResumeTiming();
    pool.Run([](int thread) { benchmark::DoNotOptimize(thread); });
  }
}
BENCHMARK(BM_RunAsleep)->Arg(2)->Arg(8)->Iterations(300)->UseRealTime();

}  // namespace
}  // namespace equitile

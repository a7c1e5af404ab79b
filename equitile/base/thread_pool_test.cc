#include "equitile/base/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "equitile/base/error.h"

namespace equitile {
namespace {

TEST(ThreadPool, RunsOnceOnEachThread) {
  for (int threads : {1, 2, 3, 8, 13}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.Threads(), threads);
    for (int round = 0; round < 20; ++round) {
      std::vector<int> calls(static_cast<size_t>(threads), 0);
      pool.Run([&](int thread) { ++calls[static_cast<size_t>(thread)]; });
      EXPECT_TRUE(std::ranges::all_of(calls, [](int n) { return n == 1; })) << threads;
    }
  }
}

TEST(ThreadPool, ThreadsAreDifferentThreadsAndTheCallerIsZero) {
  ThreadPool pool(8);
  std::vector<std::thread::id> ids(8);
  pool.Run([&](int thread) { ids[static_cast<size_t>(thread)] = std::this_thread::get_id(); });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), 8u);
}

TEST(ThreadPool, OneThreadRunsInline) {
  ThreadPool pool(1);
  std::thread::id id;
  pool.ParallelFor(3, [&](int64_t, int) { id = std::this_thread::get_id(); });
  EXPECT_EQ(id, std::this_thread::get_id());
}

TEST(ThreadPool, EveryTaskOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int64_t tasks : {0, 1, 2, 3, 7, 8, 9, 1009}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(tasks));
      pool.ParallelFor(tasks, [&](int64_t task, int thread) {
        EXPECT_TRUE(0 <= thread && thread < threads);
        ++calls[static_cast<size_t>(task)];
      });
      for (int64_t t = 0; t < tasks; ++t) EXPECT_EQ(calls[static_cast<size_t>(t)], 1) << t;
    }
  }
}

TEST(ThreadPool, PollsBetweenTasksOnTheCallingThread) {
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    int polls = 0;
    pool.SetPoll([&, caller = std::this_thread::get_id()] {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      ++polls;
    });
    auto sleep = [](int64_t, int) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
    pool.ParallelFor(4 * threads, sleep);
    EXPECT_GE(polls, 1);
    pool.SetPoll([] { throw Error("lost"); });
    EXPECT_THROW(pool.ParallelFor(4 * threads, sleep), Error);
    pool.SetPoll(nullptr);
    pool.ParallelFor(4 * threads, sleep);
  }
}

// Tasks of no length at all: without a first task of its own a late thread would find none.
TEST(ThreadPool, EveryThreadComputesWhenThereAreEnoughTasks) {
  ThreadPool pool(8);
  for (int round = 0; round < 50; ++round) {
    std::mutex mutex;
    std::set<std::thread::id> ids;
    pool.ParallelFor(8, [&](int64_t, int) {
      const std::lock_guard lock(mutex);
      ids.insert(std::this_thread::get_id());
    });
    ASSERT_EQ(ids.size(), 8u);
  }
}

TEST(ThreadPool, EachThreadSeesAscendingTasks) {
  ThreadPool pool(3);
  std::vector<int64_t> last(3, -1);
  pool.ParallelFor(500, [&](int64_t task, int thread) {
    EXPECT_GT(task, last[static_cast<size_t>(thread)]);
    last[static_cast<size_t>(thread)] = task;
  });
}

TEST(ThreadPool, AnExceptionReachesTheCallerAndThePoolLivesOn) {
  for (int threads : {1, 2, 8}) {
    ThreadPool pool(threads);
    for (int thrower = 0; thrower < threads; ++thrower) {
      EXPECT_THROW(pool.Run([&](int thread) {
        if (thread == thrower) throw InputError("thread {}", thread);
      }),
                   InputError);
    }
    std::atomic<int> calls{0};
    pool.Run([&](int) { ++calls; });
    EXPECT_EQ(calls, threads);
  }
}

TEST(ThreadPool, EveryThreadThrowsOneIsRethrown) {
  ThreadPool pool(8);
  EXPECT_THROW(pool.Run([](int thread) { throw Error("thread {}", thread); }), Error);
}

TEST(ThreadPool, NoTaskBeginsAfterAnException) {
  ThreadPool pool(2);
  std::atomic<int64_t> begun{0};
  EXPECT_THROW(pool.ParallelFor(1'000'000'000,
                                [&](int64_t task, int) {
                                  ++begun;
                                  if (task == 5) throw Error("task {}", task);
                                }),
               Error);
  EXPECT_LT(begun, 1'000'000'000);
}

TEST(ThreadPool, PoolsLiveSideBySide) {
  std::vector<std::thread> ranks;
  std::atomic<int64_t> sum{0};
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&] {
      ThreadPool pool(3);
      for (int round = 0; round < 50; ++round) {
        pool.ParallelFor(10, [&](int64_t task, int) { sum += task; });
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(sum, 3 * 50 * 45);
}

TEST(ThreadPool, SleepingWorkersWake) {
  ThreadPool pool(2);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than a worker spins
    std::atomic<int> calls{0};
    pool.Run([&](int) { ++calls; });
    EXPECT_EQ(calls, 2);
  }
}

TEST(ThreadPool, FewerThanOneThreadIsRefused) {
  EXPECT_THROW(ThreadPool(0), InputError);
  EXPECT_THROW(ThreadPool(-3), InputError);
}

TEST(ThreadPoolDeathTest, ACallFromInsideACallIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.Run([&](int) { pool.Run([](int) {}); });
      },
      "inside its own call");
}

}  // namespace
}  // namespace equitile

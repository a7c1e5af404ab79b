// What surrounds the arithmetic of an attention call: threads, polling, failures, refused input,
// and partial results.
#include <ctime>

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/base/timer.h"
#include "equitile/kernel/attention/attention_testing.h"
#include "equitile/kernel/target_testing.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define EQUITILE_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define EQUITILE_SANITIZED 1
#endif
#endif

namespace equitile {
namespace {

using testing::MatchesReference;
using testing::Problem;
using testing::ProblemOptions;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rows of a view, seen by whoever wants to know when and where they are asked for.
class WatchedRows {
 public:
  WatchedRows(const ConstView& view, Lanes lanes,
              std::function<void(int64_t lane, int64_t token)> watch)
      : view_(view), lanes_(lanes), watch_(std::move(watch)) {}

  void operator()(int64_t lane, int64_t first, int64_t count, float* rows) const {
    watch_(lane, first);
    for (int64_t t = first; t < first + count; ++t) {
      for (int64_t d = 0; d < view_.Extent(3); ++d)
        *rows++ = view_.Load(lanes_.BatchOf(lane), t, lanes_.HeadOf(lane), d);
    }
  }

 private:
  ConstView view_;
  Lanes lanes_;
  std::function<void(int64_t, int64_t)> watch_;
};

// Which threads asked for queries, that is, computed rows.
std::set<std::thread::id> ThreadsThatComputed(Problem& problem, int threads) {
  std::mutex mutex;
  std::set<std::thread::id> ids;
  WatchedRows q(ConstView(problem.q.view()), problem.options.lanes, [&](int64_t, int64_t) {
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  problem.args.q = RowProducer(q);
  problem.Run(threads);
  return ids;
}

TEST(AttentionThreads, EightAreEight) {
  // Many rows, exactly as many as threads, and lanes of one row each.
  for (const ProblemOptions& options :
       {ProblemOptions{.lanes = {1, 2},
       .grid = {.q_tokens = 320, .kv_tokens = 64, .block_tokens = 16}},
        ProblemOptions{.grid = {.q_tokens = 128, .kv_tokens = 16, .block_tokens = 16}},
        ProblemOptions{.lanes = {2, 8},
        .grid = {.q_tokens = 5, .kv_tokens = 33, .block_tokens = 16}}}) {
    for (int round = 0; round < 5; ++round) {
      Problem problem(options);
      EXPECT_EQ(ThreadsThatComputed(problem, 8).size(), 8u);
    }
  }
}

TEST(AttentionThreads, NoMoreThanRowsAndNoneBesideThePool) {
  Problem three_rows({.grid = {.q_tokens = 40, .kv_tokens = 16, .block_tokens = 16}});
  EXPECT_EQ(ThreadsThatComputed(three_rows, 8).size(), 3u);
  Problem many({.grid = {.q_tokens = 400, .kv_tokens = 16, .block_tokens = 16}});
  EXPECT_EQ(ThreadsThatComputed(many, 1), std::set<std::thread::id>{std::this_thread::get_id()});
}

double ThreadCpuSeconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

class AttentionPolling : public testing::TargetTest {};

TEST_P(AttentionPolling, OnTheCallingThreadAboutEveryMillisecond) {
  for (const auto& [threads, compute] : {std::pair(1, Compute::kF32),
                                         {3, Compute::kF32},
                                         {1, Compute::kInt16},
                                         {3, Compute::kInt8}}) {
    SCOPED_TRACE(ComputeName(compute));
    Problem problem({.lanes = {1, 2},
                     .grid = {.q_tokens = 512, .kv_tokens = 2048, .block_tokens = 256},
                     .head_dim = 64,
                     .density = 1.0f});
    // In processor time of this thread: what it spends waiting for a core is not the kernel's
    // doing.
    double last = ThreadCpuSeconds(), largest = 0.0;
    int64_t polls = 0, elsewhere = 0;
    const auto caller = std::this_thread::get_id();
    auto look = [&] {
      const double now = ThreadCpuSeconds();
      largest = std::max(largest, now - last);
      last = now;
    };
    auto poll = [&] {
      ++polls;
      if (std::this_thread::get_id() != caller) ++elsewhere;
      look();
    };
    problem.args.compute = compute;
    problem.args.poll = poll;
    last = ThreadCpuSeconds();
    const double begin = last;
    problem.Run(threads);
    look();
    [[maybe_unused]] const double spent = last - begin;
    EXPECT_EQ(elsewhere, 0);
    EXPECT_GE(polls, 1);
#ifndef EQUITILE_SANITIZED
    // The portable target needs some milliseconds for what the others do in a fraction of one.
    const double allowed = GetParam() == Target::kPortable ? 20e-3 : 2e-3;
    EXPECT_LE(largest, allowed) << "of " << spent << " s, " << polls << " polls, " << threads
                                << " threads";
    EXPECT_GE(static_cast<double>(polls), spent / allowed);
#endif
    RecordProperty("largest_gap_us", static_cast<int>(largest * 1e6));
    EXPECT_TRUE(MatchesReference(problem, 7));
  }
}

EQUITILE_TEST_ON_ALL_TARGETS(AttentionPolling);

// Also when nothing is left for the calling thread and others still compute.
TEST(AttentionPollingAtTheEnd, GoesOnWhileOthersCompute) {
  Problem problem({.grid = {.q_tokens = 64, .kv_tokens = 64, .block_tokens = 32}, .density = 1.0f});
  const auto caller = std::this_thread::get_id();
  std::atomic<bool> slow{false};
  WatchedRows q(ConstView(problem.q.view()), problem.options.lanes, [&](int64_t, int64_t) {
    if (std::this_thread::get_id() == caller) return;
    slow = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    slow = false;
  });
  problem.args.q = RowProducer(q);
  int polls_while_slow = 0;
  auto poll = [&] { polls_while_slow += slow; };
  problem.args.poll = poll;
  problem.Run(2);
  EXPECT_GE(polls_while_slow, 10);
}

TEST(AttentionPollingAtTheEnd, AnExceptionFromPollReachesTheCaller) {
  for (int threads : {1, 4}) {
    Problem problem({.lanes = {1, 3}});
    auto poll = [] { throw std::domain_error("poll"); };
    problem.args.poll = poll;
    EXPECT_THROW(problem.Run(threads), std::domain_error);
  }
}

// A producer that fails on some thread, at some row: the caller gets that exception and no other,
// and nobody waits for ever.
TEST(AttentionFailures, OfProducersReachTheCaller) {
  for (int threads : {1, 2, 8}) {
    for (const char which : {'q', 'k', 'v'}) {
      for (int fail_at = 0; fail_at < 24; fail_at += 1 + fail_at / 2) {
        Problem problem({.lanes = {2, 3},
                         .grid = {.q_tokens = 70, .kv_tokens = 90, .block_tokens = 32},
                         .density = 1.0f});
        std::atomic<int> calls{0};
        auto watch = [&](int64_t, int64_t) {
          if (calls++ == fail_at) throw std::out_of_range("the producer's own");
        };
        TokenSource& source = which == 'q'   ? problem.args.q
                              : which == 'k' ? problem.args.k
                                             : problem.args.v;
        WatchedRows rows(source.view, problem.options.lanes, watch);
        source = RowProducer(rows);
        try {
          problem.Run(threads);
          ADD_FAILURE() << "no exception";
        } catch (const std::out_of_range& error) {
          EXPECT_STREQ(error.what(), "the producer's own");
        } catch (const std::exception& error) {
          ADD_FAILURE() << "another exception: " << error.what();
        }
      }
    }
  }
}

TEST(AttentionFailures, OfEveryThreadAtOnce) {
  for (int round = 0; round < 20; ++round) {
    Problem problem(
        {.lanes = {2, 3}, .grid = {.q_tokens = 70, .kv_tokens = 90, .block_tokens = 16}});
    WatchedRows k(ConstView(problem.k.view()), problem.options.lanes,
                  [](int64_t, int64_t) { throw std::out_of_range("all of them"); });
    problem.args.k = RowProducer(k);
    EXPECT_THROW(problem.Run(8), std::out_of_range);
  }
}

TEST(AttentionFailures, LeavePoolAndWorkspaceUsable) {
  ThreadPool pool(4);
  Workspace workspace;
  Problem problem({.lanes = {2, 3}});
  const auto want = problem.Bits();
  for (int round = 0; round < 10; ++round) {
    AttentionArgs failing = problem.args;
    std::atomic<int> calls{0};
    WatchedRows v(ConstView(problem.v.view()), problem.options.lanes, [&](int64_t, int64_t) {
      if (calls++ == round) throw std::out_of_range("once");
    });
    failing.v = RowProducer(v);
    EXPECT_THROW(Attention(failing, pool, workspace), std::out_of_range);
    Attention(problem.args, pool, workspace);
    EXPECT_TRUE(problem.out.Bytes() == want.out);
  }
}

class AttentionRefuses : public ::testing::Test {
 protected:
  // InputError with these words, and nothing written.
  void ExpectRefused(const std::string& words) {
    const auto before = problem_.out.Bytes();
    try {
      problem_.Run();
      ADD_FAILURE() << "accepted";
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
    EXPECT_TRUE(problem_.out.Bytes() == before);
    for (float lse : problem_.lse) EXPECT_EQ(lse, Problem::kUntouchedLse);
  }

  Problem problem_{{.lanes = {2, 3}}};
};

TEST_F(AttentionRefuses, HeadDims) {
  for (int64_t head_dim : {12, 0, -8, 520, 1 << 20}) {
    problem_.args.head_dim = head_dim;
    ExpectRefused("head_dim " + std::to_string(head_dim));
  }
}

TEST_F(AttentionRefuses, Blocks) {
  for (int64_t block : {8, 0, -16, 24, 272}) {
    problem_.args.grid.block_tokens = block;
    ExpectRefused("block " + std::to_string(block));
  }
}

TEST_F(AttentionRefuses, TokenCounts) {
  problem_.args.grid.q_tokens = 0;
  ExpectRefused("0 query");
  problem_.args.grid = problem_.options.grid;
  problem_.args.grid.kv_tokens = -1;
  ExpectRefused("-1 key");
}

TEST_F(AttentionRefuses, ShapesThatDoNotFit) {
  const AttentionArgs good = problem_.args;
  // One more head, one token less, half the dims, no view at all.
  problem_.args.lanes.heads = 4;
  ExpectRefused("q has shape [2, 100, 3, 16]");
  problem_.args = good;
  problem_.args.k = ConstView(problem_.k.view()).Slice(1, {0, 99});
  ExpectRefused("k has shape [2, 99, 3, 16]");
  problem_.args = good;
  problem_.args.v = ConstView(problem_.v.view()).Slice(3, {0, 8});
  ExpectRefused("v has shape [2, 100, 3, 8]");
  problem_.args = good;
  problem_.args.out = problem_.out.view().Select(0, 0);
  ExpectRefused("out has shape [100, 3, 16]");
  problem_.args = good;
  problem_.args.q = TokenSource();
  ExpectRefused("q has shape []");
}

TEST_F(AttentionRefuses, StripTablesThatDoNotFit) {
  std::vector<const std::byte*> strips(6 * 7, nullptr);
  problem_.args.k = StripTable{.strips = strips, .strips_per_lane = 6};
  ExpectRefused("k has 42 strips, 6 per lane");
  problem_.args.k = StripTable{.strips = std::span(strips).first(41), .strips_per_lane = 7};
  ExpectRefused("k has 41 strips, 7 per lane");
}

TEST_F(AttentionRefuses, Scales) {
  for (float scale : {-1.0f, kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    problem_.args.scale = scale;
    ExpectRefused("scale");
  }
}

TEST_F(AttentionRefuses, NumbersOfTokenOrders) {
  const int32_t* const orders[] = {nullptr, nullptr};
  problem_.args.kv_order = orders;
  ExpectRefused("2 token orders for 6 lanes");
}

TEST_F(AttentionRefuses, Rows) {
  struct Case {
    int64_t lane, q_block;
    std::vector<int32_t> kept;
    std::string words;
  };
  for (const Case& bad :
       {Case{6, 0, {0}, "lane 6"}, Case{-1, 0, {0}, "lane -1"}, Case{0, 4, {0}, "q block 4"},
        Case{0, -1, {0}, "q block -1"}, Case{0, 0, {2, 1}, "kv block 1 after 2"},
        Case{0, 0, {1, 1}, "kv block 1 after 1"}, Case{0, 0, {0, 4}, "kv block 4"},
        Case{0, 0, {-1}, "kv block -1"}}) {
    problem_.rows = AttentionRows();
    problem_.rows.Add(0, 1, std::vector<int32_t>{0, 1});  // a good one first
    problem_.rows.Add(bad.lane, bad.q_block, bad.kept);
    ExpectRefused(bad.words);
  }
}

}  // namespace
}  // namespace equitile

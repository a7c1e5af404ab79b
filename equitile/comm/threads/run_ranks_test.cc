#include "equitile/comm/threads/run_ranks.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "equitile/comm/communicator_testing.h"

namespace equitile {
namespace {

class Ranks : public testing::TestWithParam<int32_t> {
 protected:
  void Run(void (*test)(Communicator&)) {
    RunRanks(GetParam(), [&](Communicator& comm) { test(comm); });
  }
};
INSTANTIATE_TEST_SUITE_P(Threads, Ranks, testing::Values(1, 2, 3, 8, 16));

TEST_P(Ranks, AllToAll) { Run(comm_testing::AllToAll); }
TEST_P(Ranks, TagsOutOfOrder) { Run(comm_testing::TagsOutOfOrder); }
TEST_P(Ranks, ManyInOrder) { Run(comm_testing::ManyInOrder); }
TEST_P(Ranks, Collectives) { Run(comm_testing::Collectives); }
TEST_P(Ranks, SumsAgree) { Run(comm_testing::SumsAgree); }

// What the ranks other than the failing one wait in.
struct Waiting {
  const char* name;
  void (*wait)(Communicator& comm);
};
constexpr Waiting kWaiting[] = {{"Wait",
                                 [](Communicator& comm) {
                                   std::vector<std::byte> bytes(1000);
                                   CommRequest request = comm.Receive(bytes, 0, 5);
                                   comm.Wait(request);
                                 }},
                                {"WaitForSend",
                                 [](Communicator& comm) {
                                   std::vector<std::byte> bytes(1000);
                                   CommRequest request = comm.Send(bytes, 0, 5);
                                   comm.Wait(request);
                                 }},
                                {"Barrier", [](Communicator& comm) { comm.Barrier(); }},
                                {"AllReduce",
                                 [](Communicator& comm) {
                                   std::vector<double> values(3);
                                   comm.AllReduce(values, Reduce::kSum);
                                 }},
                                {"Broadcast",
                                 [](Communicator& comm) {
                                   std::vector<std::byte> bytes(3);
                                   comm.Broadcast(bytes, 0);
                                 }},
                                {"Poll", [](Communicator& comm) {
                                   while (true) comm.Poll();
                                 }}};

class Failures : public testing::TestWithParam<Waiting> {};
INSTANTIATE_TEST_SUITE_P(Threads, Failures, testing::ValuesIn(kWaiting),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Failures, OneThrowsAllStop) {
  for (const int32_t ranks : {2, 3, 8}) {
    std::atomic<int> told = 0;
    try {
      RunRanks(ranks, [&](Communicator& comm) {
        comm.SetPlace(4, comm.rank(), 2);
        if (comm.rank() == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          throw Error("out of {}", "luck");
        }
        try {
          GetParam().wait(comm);
        } catch (const CommError& error) {
          told += error.rank() == 0 && error.cause() == "out of luck";
          throw;
        }
      });
      FAIL();
    } catch (const CommError& error) {
      EXPECT_STREQ(error.what(), "rank 0 (step 4, layer 0, stage 2): out of luck");
    }
    EXPECT_EQ(told, ranks - 1);
  }
}

// Deaf until `done`, or until long after any watchdog here.
void SleepUntil(const std::atomic<bool>& done) {
  for (int i = 0; i < 1000 && !done; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

TEST_P(Failures, ASleepingRankIsNamed) {
  std::atomic<bool> noticed = false;
  try {
    RunRanks(3,
             [&](Communicator& comm) {
               comm.SetPlace(1, 2, 3);
               if (comm.rank() == 0) return SleepUntil(noticed);
               try {
                 GetParam().wait(comm);
               } catch (const CommError&) {
                 noticed = true;
                 throw;
               }
             },
             {.watchdog_seconds = 0.4, .on_lost = {}});
    FAIL();
  } catch (const CommError& error) {
    EXPECT_EQ(error.rank(), 0);
    EXPECT_EQ(error.place(), (Place{1, 2, 3}));
    EXPECT_EQ(error.failure().kind, FailureKind::kLost);
  }
}

TEST(RunRanks, ASlowRankThatPollsIsNotDead) {
  RunRanks(3,
           [](Communicator& comm) {
             for (int i = 0; comm.rank() == 1 && i < 40; ++i) {
               std::this_thread::sleep_for(std::chrono::milliseconds(20));
               comm.Poll();
             }
             comm.Barrier();
           },
           {.watchdog_seconds = 1, .on_lost = {}});
}

TEST(RunRanks, AnInputErrorStaysOne) {
  try {
    RunRanks(3, [](Communicator& comm) {
      if (comm.rank() == 2) throw InputError("[io] {}: no such file", "m.npy");
      comm.Barrier();
    });
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "[io] m.npy: no such file");
  }
}

TEST(RunRanks, ACommErrorOfItsOwnStopsTheOthers) {
  try {
    RunRanks(3, [](Communicator& comm) {
      if (comm.rank() == 2) throw CommError({1, {}, FailureKind::kFailed, "lies"});
      comm.Barrier();
    });
    FAIL();
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(), "rank 2: rank 1: lies");
  }
}

TEST(RunRanks, TheFirstFailureIsTold) {
  try {
    RunRanks(4, [](Communicator& comm) {
      if (comm.rank() == 3) {
        comm.Abort("first");
        throw Error("later");
      }
      try {
        comm.Barrier();
      } catch (const CommError&) {
        throw Error("last");
      }
    });
    FAIL();
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(), "rank 3: first");
  }
}

TEST(RunRanks, SizesMustAgree) {
  EXPECT_THROW(RunRanks(2,
                        [](Communicator& comm) {
                          std::vector<std::byte> bytes(comm.rank() == 0 ? 8 : 16);
                          CommRequest request =
                              comm.rank() == 0 ? comm.Send(bytes, 1, 0) : comm.Receive(bytes, 0, 0);
                          comm.Wait(request);
                        }),
               CommError);
}

TEST(RunRanks, CollectivesMustAgree) {
  EXPECT_THROW(RunRanks(3,
                        [](Communicator& comm) {
                          std::vector<double> values(comm.rank() == 1 ? 2 : 1);
                          comm.AllReduce(values, Reduce::kSum);
                        }),
               CommError);
}

TEST(RunRanks, WaitingForARankThatHasEndedIsAnError) {
  try {
    RunRanks(3, [](Communicator& comm) {
      if (comm.rank() == 1) comm.Barrier();
    });
    FAIL();
  } catch (const CommError& error) {
    EXPECT_EQ(error.rank(), 1);
  }
}

// Buffers of ranks that fail go away while others still send to them: nobody may write there.
TEST(RunRanks, NobodyTouchesTheBuffersOfAFailedRank) {
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(RunRanks(4,
                          [&](Communicator& comm) {
                            auto in = std::make_unique<std::vector<std::byte>>(100'000);
                            auto out = std::make_unique<std::vector<std::byte>>(100'000);
                            AbortOnError(comm, [&] {
                              for (int32_t i = 0; i < 10; ++i) {
                                CommRequest receive = comm.Receive(*in, (comm.rank() + 3) % 4, i);
                                CommRequest send = comm.Send(*out, (comm.rank() + 1) % 4, i);
                                if (comm.rank() == round % 4 && i == round % 10) throw Error("now");
                                comm.Wait(receive);
                                comm.Wait(send);
                              }
                            });
                          }),
                 CommError);
  }
}

TEST(RunRanks, ALostRankIsReportedBeforeItComesBack) {
  std::atomic<bool> reported = false;
  const auto report = [&](const CommError& error) { reported = error.rank() == 1; };
  EXPECT_THROW(RunRanks(2,
                        [&](Communicator& comm) {
                          if (comm.rank() == 1) SleepUntil(reported);
                          comm.Barrier();
                        },
                        {.watchdog_seconds = 0.4, .on_lost = report}),
               CommError);
  EXPECT_TRUE(reported);
}

TEST(RunRanks, SeveralLostRanksAreReportedBeforeTheyComeBack) {
  std::atomic<int> reports = 0;
  std::atomic<bool> reported = false;
  const auto report = [&](const CommError& error) {
    EXPECT_EQ(error.failure().kind, FailureKind::kLost);
    ++reports;
    reported = true;
  };
  EXPECT_THROW(RunRanks(4,
                        [&](Communicator& comm) {
                          if (comm.rank() % 2 == 1) SleepUntil(reported);
                          comm.Barrier();
                        },
                        {.watchdog_seconds = 0.4, .on_lost = report}),
               CommError);
  EXPECT_EQ(reports, 1);
}

// Threads that are started from now on want a stack that no machine has.
class NoMoreThreads {
 public:
  NoMoreThreads() { EXPECT_EQ(pthread_getattr_default_np(&before_), 0); }
  ~NoMoreThreads() { EXPECT_EQ(pthread_setattr_default_np(&before_), 0); }
  void Begin() {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    EXPECT_EQ(pthread_attr_setstacksize(&attributes, size_t{1} << 46), 0);
    EXPECT_EQ(pthread_setattr_default_np(&attributes), 0);
    pthread_attr_destroy(&attributes);
  }

 private:
  pthread_attr_t before_;
};

TEST(RunRanks, AThreadThatCannotBeStartedStopsThoseThatWere) {
  NoMoreThreads limit;
  std::atomic<int32_t> started = 0;
  const int32_t ranks = 1000;
  try {
    RunRanks(ranks, [&](Communicator& comm) {
      ++started;
      limit.Begin();
      comm.Barrier();
    });
    FAIL();
  } catch (const CommError& error) {
    EXPECT_EQ(error.rank(), started);
    EXPECT_NE(error.cause().find("cannot start a thread"), std::string::npos) << error.what();
  }
  EXPECT_GT(started, 0);
  EXPECT_LT(started, ranks);
}

}  // namespace
}  // namespace equitile

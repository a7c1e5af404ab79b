#include "equitile/comm/mpi/mpi_communicator.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "equitile/comm/communicator_testing.h"
#include "equitile/comm/mpi/mpi_testing.h"

namespace equitile::mpi {
namespace {

TEST(Mpi, AllToAll) { comm_testing::AllToAll(MpiTestRanks()); }
TEST(Mpi, TagsOutOfOrder) { comm_testing::TagsOutOfOrder(MpiTestRanks()); }
TEST(Mpi, ManyInOrder) { comm_testing::ManyInOrder(MpiTestRanks()); }
TEST(Mpi, Collectives) { comm_testing::Collectives(MpiTestRanks()); }
TEST(Mpi, SumsAgree) { comm_testing::SumsAgree(MpiTestRanks()); }

TEST(Mpi, RanksOfThisMachineShareANode) {
  Communicator& comm = MpiTestRanks();
  EXPECT_EQ(comm.NodeOf(), std::vector<int32_t>(static_cast<size_t>(comm.size()), 0));
}

// Chunks of a prime number of bytes: everything above is cut, with ragged ends.
TEST(Mpi, MessagesInChunks) {
  MpiCommunicator comm(MPI_COMM_WORLD, 60, 997);
  comm_testing::AllToAll(comm);
  comm_testing::ManyInOrder(comm);
  comm_testing::Collectives(comm);
  comm_testing::SumsAgree(comm);
  comm.Close();
}

TEST(Mpi, ManyHeartbeatsLeaveNothingBehind) {
  MpiCommunicator comm(MPI_COMM_WORLD, 2, 997);
  for (int i = 0; i < 30; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    comm.Poll();
  }
  comm_testing::AllToAll(comm);
  comm.Close();
}

// A slow rank that polls is not dead; nor is one that waits for it.
TEST(Mpi, SlowIsNotDead) {
  MpiCommunicator comm(MPI_COMM_WORLD, 2);
  for (int i = 0; comm.rank() == comm.size() - 1 && i < 250; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    comm.Poll();
  }
  comm.Barrier();
  comm.Close();
}

TEST(Mpi, AFailureReachesEveryRank) {
  // Never closed, as after a real failure: its notes stay where they are.
  auto* leaked = new MpiCommunicator(MPI_COMM_WORLD, 60);
  Communicator& comm = *leaked;
  const int32_t last = comm.size() - 1;
  comm.SetPlace(7, 8, 9);
  std::string told;
  try {
    if (comm.rank() == last) {
      AbortOnError(comm, [] { throw Error("the {} broke", "fan"); });
    }
    comm.Barrier();
  } catch (const std::exception& error) {
    told = error.what();
  }
  EXPECT_EQ(told, comm.rank() == last ? "the fan broke"
                                      : fmt::format("rank {} (step 7, layer 8, stage 9): the fan "
                                                    "broke",
                                                    last));
  EXPECT_THROW(comm.Poll(), CommError);
  MpiTestRanks().Barrier();
}

TEST(Mpi, SizesMustAgree) {
  if (MpiTestRanks().size() < 2) return;
  // In one chunk, and with chunks of two bytes, where some differ by whole chunks.
  struct Case {
    size_t sent, chunk_bytes;
  };
  for (const auto& [sent, chunk_bytes] :
       {Case{3, 100}, {5, 100}, {3, 2}, {5, 2}, {2, 2}, {6, 2}, {0, 2}, {8, 2}}) {
    SCOPED_TRACE(fmt::format("{} bytes in chunks of {}", sent, chunk_bytes));
    auto* leaked = new MpiCommunicator(MPI_COMM_WORLD, 60, chunk_bytes);
    std::vector<std::byte> bytes(leaked->rank() == 0 ? sent : 4);
    try {
      if (leaked->rank() == 0) {
        CommRequest request = leaked->Send(bytes, 1, 0);
        leaked->Wait(request);
      }
      if (leaked->rank() == 1) {
        CommRequest request = leaked->Receive(bytes, 0, 0);
        leaked->Wait(request);
      }
      leaked->Barrier();
      ADD_FAILURE() << "nobody noticed";
    } catch (const CommError& error) {
      EXPECT_EQ(error.rank(), 1);
    }
    MpiTestRanks().Barrier();
  }
}

}  // namespace
}  // namespace equitile::mpi

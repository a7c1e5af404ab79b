#include "equitile/comm/solo/solo.h"

#include <gtest/gtest.h>

#include "equitile/comm/communicator_testing.h"

namespace equitile {
namespace {

TEST(Solo, DoesWhatSeveralRanksDo) {
  SoloCommunicator comm;
  comm_testing::AllToAll(comm);
  comm_testing::TagsOutOfOrder(comm);
  comm_testing::ManyInOrder(comm);
  comm_testing::Collectives(comm);
  comm_testing::SumsAgree(comm);
}

TEST(Solo, WaitingForItselfIsAnError) {
  SoloCommunicator comm;
  std::byte byte{};
  CommRequest request = comm.Receive({&byte, 1}, 0, 0);
  EXPECT_FALSE(comm.Test(request));
  EXPECT_THROW(comm.Wait(request), CommError);
}

TEST(Solo, SizesMustAgree) {
  SoloCommunicator comm;
  std::byte bytes[2] = {};
  comm.Receive({bytes, 2}, 0, 0);
  EXPECT_THROW(comm.Send({bytes, 1}, 0, 0), CommError);
}

TEST(Solo, AbortIsToldWithPlace) {
  SoloCommunicator solo;
  Communicator& comm = solo;
  comm.SetPlace(3, 1, 0);
  comm.Abort("the disk is full");
  try {
    comm.Barrier();
    FAIL();
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(), "rank 0 (step 3, layer 1, stage 0): the disk is full");
  }
}

TEST(CommErrors, UnknownPartsOfAPlaceAreLeftOut) {
  EXPECT_STREQ(CommError({2, {}, FailureKind::kFailed, "gone"}).what(), "rank 2: gone");
  EXPECT_STREQ(CommError({2, {.step = -1, .layer = 4}, FailureKind::kFailed, "gone"}).what(),
               "rank 2 (layer 4): gone");
}

}  // namespace
}  // namespace equitile

// main() of the MPI tests: every rank runs every case, rank 0 prints, and a case that fails on any
// rank fails the job.
#include "equitile/comm/mpi/mpi_testing.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <span>

#include "equitile/comm/mpi/launch.h"

namespace equitile {
namespace {

Communicator* ranks = nullptr;

// What goes wrong on a rank other than 0, whose output is off.
class FailurePrinter : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    fmt::print(stderr, "rank {}: {}:{}: {}\n", ranks->rank(), result.file_name(),
               result.line_number(), result.message());
  }
};

int RunTests() {
  uint64_t failed = 1;
  mpi::Run([&](Communicator& comm) {
    ranks = &comm;
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    if (comm.rank() != 0) {
      delete listeners.Release(listeners.default_result_printer());
      listeners.Append(new FailurePrinter);
    }
    failed = RUN_ALL_TESTS() != 0;
    comm.AllReduce(std::span(&failed, 1), Reduce::kMax);
  });
  return static_cast<int>(failed);
}

}  // namespace

Communicator& MpiTestRanks() { return *ranks; }

}  // namespace equitile

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int code = 1;
  try {
    code = equitile::RunTests();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
  }
  return equitile::mpi::End(code);
}

// One rank of an MPI job.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>
#include <vector>

#include "equitile/base/function_ref.h"
#include "equitile/comm/communicator.h"
#include "equitile/comm/mpi/control.h"
#include "equitile/comm/mpi/simulator.h"

namespace equitile::mpi {

class MpiCommunicator final : public Communicator {
 public:
  // MPI counts are ints; a power of two below them.
  static constexpr size_t kChunkBytes = size_t{1} << 30;

  // Collective. Messages travel in chunks of at most `chunk_bytes`.
  MpiCommunicator(MPI_Comm world, double watchdog_seconds, size_t chunk_bytes = kChunkBytes);

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }
  std::string_view name() const override { return "mpi"; }
  bool simulated() const override { return kSimulator; }
  std::vector<int32_t> NodeOf() const override { return node_of_; }

  CommRequest Receive(std::span<std::byte> bytes, int32_t from, int32_t tag) override;
  bool Test(CommRequest& request) override;
  void Wait(CommRequest& request) override;
  void Poll() override;
  void SetPlace(int32_t step, int32_t layer, int32_t stage) override;
  double Now() const override { return MPI_Wtime(); }
  bool models_compute() const override { return models_compute_; }
  void Elapse(double seconds) override;
  void Abort(std::string_view reason, FailureKind kind) override;
  void Barrier() override;
  void AllReduce(std::span<double> values, Reduce op) override;
  void AllReduce(std::span<uint64_t> values, Reduce op) override;
  void Broadcast(std::span<std::byte> bytes, int32_t root) override;

  const std::optional<RankFailure>& failure() const { return control_.failure(); }
  // Collective, the last call of a job that went well. After a failure MPI's objects are left
  // alone: freeing them would wait for the dead.
  void Close();

 private:
  CommRequest DoSend(std::span<const std::byte> bytes, int32_t to, int32_t tag) override;
  // The chunks of one message.
  struct Transfer {
    std::vector<MPI_Request> chunks;  // empty: the slot is free
    std::vector<MPI_Status> statuses;
    size_t bytes = 0;
    bool is_receive = false;
    int32_t peer = 0;
    int32_t tag = 0;
  };

  Transfer& NewTransfer(CommRequest& request, size_t bytes, int32_t peer, int32_t tag);
  Transfer& At(CommRequest request);
  void CheckArrival(const Transfer& transfer, int code);
  void CheckFullChunks(const Transfer& transfer);
  [[noreturn]] void Fail(const Transfer& transfer, const std::string& wrong);
  void Spend(CommRequest& request);
  void ThrowIfFailed();
  // Polls until `done`, leaving the core to others while nothing happens.
  void WaitUntil(FunctionRef<bool()> done);
  void WaitFor(MPI_Request request);
  template <typename Number>
  void AllReduceNumbers(std::span<Number> values, Reduce op, MPI_Datatype type);

  MPI_Comm comm_ = MPI_COMM_NULL;
  int32_t rank_ = 0;
  int32_t size_ = 1;
  std::vector<int32_t> node_of_;  // [ranks]
  size_t chunk_bytes_;
  bool models_compute_;
  Control control_;
  std::vector<Transfer> transfers_;
  std::vector<int64_t> free_;
};

}  // namespace equitile::mpi

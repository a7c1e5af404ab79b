#include "equitile/comm/mpi/mpi_communicator.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <map>
#include <utility>

#include "equitile/comm/mpi/mpi_check.h"
#include "equitile/comm/reduce.h"

namespace equitile::mpi {
namespace {

// A wait first only looks (a message from a running rank comes within microseconds), then hands its
// core to others, then sleeps between looks: with more ranks than cores somebody else has work.
constexpr int kLooks = 200;
constexpr int kYields = 2000;
constexpr timespec kNap = {.tv_sec = 0, .tv_nsec = 50'000};

// Numbers of all ranks that are gathered at a time, to be combined in rank order: whatever a
// reduction's size, this is its memory.
constexpr size_t kGatherBytes = size_t{1} << 22;

void CheckTags(MPI_Comm comm) {
  int* highest = nullptr;
  int known = 0;
  EQ_MPI(MPI_Comm_get_attr(comm, MPI_TAG_UB, &highest, &known));
  if (known != 0 && *highest < Communicator::kMaxTag) {
    throw Error("[comm] this MPI allows tags up to {}; {} are needed", *highest,
                Communicator::kMaxTag);
  }
}

// [ranks] the first rank of each one's machine, as the MPI sees machines.
std::vector<int32_t> FirstRanks(MPI_Comm comm, int32_t rank, int32_t size) {
  MPI_Comm node = MPI_COMM_NULL;
  EQ_MPI(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node));
  int32_t first = rank;
  EQ_MPI(MPI_Bcast(&first, 1, MPI_INT32_T, 0, node));
  EQ_MPI(MPI_Comm_free(&node));
  std::vector<int32_t> firsts(static_cast<size_t>(size));
  EQ_MPI(MPI_Allgather(&first, 1, MPI_INT32_T, firsts.data(), 1, MPI_INT32_T, comm));
  return firsts;
}

// Numbers from 0, in the order in which names appear first.
std::vector<int32_t> Numbered(const std::vector<int32_t>& names) {
  std::map<int32_t, int32_t> number;
  std::vector<int32_t> numbers;
  for (int32_t name : names)
    numbers.push_back(number.try_emplace(name, static_cast<int32_t>(number.size())).first->second);
  return numbers;
}

}  // namespace

MpiCommunicator::MpiCommunicator(MPI_Comm world, double watchdog_seconds, size_t chunk_bytes)
    : chunk_bytes_(chunk_bytes),
      models_compute_(ModelsCompute()),
      control_(world, kSimulator ? 0 : watchdog_seconds) {
  EQ_CHECK(chunk_bytes >= 1 && chunk_bytes <= kChunkBytes, "{}", chunk_bytes);
  EQ_MPI(MPI_Comm_dup(world, &comm_));
  EQ_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  EQ_MPI(MPI_Comm_rank(comm_, &rank_));
  EQ_MPI(MPI_Comm_size(comm_, &size_));
  CheckTags(world);
  node_of_ = Numbered(kSimulator ? SimulatedNodes(size_) : FirstRanks(comm_, rank_, size_));
}

MpiCommunicator::Transfer& MpiCommunicator::NewTransfer(CommRequest& request, size_t bytes,
                                                        int32_t peer, int32_t tag) {
  ThrowIfFailed();
  EQ_CHECK(peer >= 0 && peer < size_, "rank {} of {}", peer, size_);
  EQ_CHECK(tag >= 0 && tag <= kMaxTag, "tag {}", tag);
  if (free_.empty()) {
    free_.push_back(static_cast<int64_t>(transfers_.size()));
    transfers_.emplace_back();
  }
  request.id = free_.back();
  free_.pop_back();
  Transfer& transfer = transfers_[static_cast<size_t>(request.id)];
  // The last chunk is never full: both sides can tell where a message ends, also where their sizes
  // differ by whole chunks.
  const size_t chunks = bytes / chunk_bytes_ + 1;
  transfer.chunks.assign(chunks, MPI_REQUEST_NULL);
  transfer.statuses.resize(chunks);
  transfer.bytes = bytes;
  transfer.peer = peer;
  transfer.tag = tag;
  return transfer;
}

CommRequest MpiCommunicator::DoSend(std::span<const std::byte> bytes, int32_t to, int32_t tag) {
  CommRequest request;
  Transfer& transfer = NewTransfer(request, bytes.size(), to, tag);
  transfer.is_receive = false;
  for (size_t i = 0; i < transfer.chunks.size(); ++i) {
    const auto chunk =
        bytes.subspan(i * chunk_bytes_, std::min(chunk_bytes_, bytes.size() - i * chunk_bytes_));
    EQ_MPI(MPI_Isend(chunk.data(), static_cast<int>(chunk.size()), MPI_BYTE, to, tag, comm_,
                     &transfer.chunks[i]));
  }
  return request;
}

CommRequest MpiCommunicator::Receive(std::span<std::byte> bytes, int32_t from, int32_t tag) {
  CommRequest request;
  Transfer& transfer = NewTransfer(request, bytes.size(), from, tag);
  transfer.is_receive = true;
  for (size_t i = 0; i < transfer.chunks.size(); ++i) {
    const auto chunk =
        bytes.subspan(i * chunk_bytes_, std::min(chunk_bytes_, bytes.size() - i * chunk_bytes_));
    EQ_MPI(MPI_Irecv(chunk.data(), static_cast<int>(chunk.size()), MPI_BYTE, from, tag, comm_,
                     &transfer.chunks[i]));
  }
  return request;
}

MpiCommunicator::Transfer& MpiCommunicator::At(CommRequest request) {
  EQ_CHECK(request.id < static_cast<int64_t>(transfers_.size()), "request {}", request.id);
  Transfer& transfer = transfers_[static_cast<size_t>(request.id)];
  EQ_CHECK(!transfer.chunks.empty(), "request {} was spent before", request.id);
  return transfer;
}

bool MpiCommunicator::Test(CommRequest& request) {
  ThrowIfFailed();
  if (!request.Active()) return true;
  Transfer& transfer = At(request);
  int done = 0;
  const int code = MPI_Testall(static_cast<int>(transfer.chunks.size()), transfer.chunks.data(),
                               &done, transfer.statuses.data());
  if (done == 0 && code == MPI_SUCCESS) {
    CheckFullChunks(transfer);
    return false;
  }
  CheckArrival(transfer, code);
  Spend(request);
  return true;
}

void MpiCommunicator::Wait(CommRequest& request) {
  if (!kSimulator) return WaitUntil([&] { return Test(request); });
  if (!request.Active()) return;
  Transfer& transfer = At(request);
  CheckArrival(transfer, MPI_Waitall(static_cast<int>(transfer.chunks.size()),
                                     transfer.chunks.data(), transfer.statuses.data()));
  Spend(request);
}

// A short chunk where a full one should be ends a message that is shorter than asked for: the rest
// would be waited for in vain.
void MpiCommunicator::CheckFullChunks(const Transfer& transfer) {
  if (!transfer.is_receive) return;
  for (size_t i = 0; i + 1 < transfer.chunks.size(); ++i) {
    int arrived = 0, count = 0;
    MPI_Status status;
    EQ_MPI(MPI_Request_get_status(transfer.chunks[i], &arrived, &status));
    if (arrived == 0) return;
    EQ_MPI(MPI_Get_count(&status, MPI_BYTE, &count));
    const size_t bytes = static_cast<size_t>(count);
    if (bytes != chunk_bytes_)
      Fail(transfer, fmt::format("{} bytes came", i * chunk_bytes_ + bytes));
  }
}

// A receive that is too short is MPI's error, one that is too long is ours.
void MpiCommunicator::CheckArrival(const Transfer& transfer, int code) {
  std::string wrong;
  size_t arrived = 0;
  for (const MPI_Status& status : transfer.statuses) {
    if (code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS) {
      wrong = ErrorText(status.MPI_ERROR);
    }
    int count = 0;
    if (code == MPI_SUCCESS && transfer.is_receive) {
      EQ_MPI(MPI_Get_count(&status, MPI_BYTE, &count));
    }
    arrived += static_cast<size_t>(count);
  }
  if (code != MPI_SUCCESS && wrong.empty()) wrong = ErrorText(code);
  if (wrong.empty() && transfer.is_receive && arrived != transfer.bytes) {
    wrong = fmt::format("{} bytes came", arrived);
  }
  if (!wrong.empty()) Fail(transfer, wrong);
}

void MpiCommunicator::Fail(const Transfer& transfer, const std::string& wrong) {
  Abort(fmt::format("[comm] {} rank {} with tag {}, {} bytes: {}",
                    transfer.is_receive ? "message from" : "message to", transfer.peer,
                    transfer.tag, transfer.bytes, wrong),
        FailureKind::kFailed);
  throw CommError(*failure());
}

void MpiCommunicator::Spend(CommRequest& request) {
  transfers_[static_cast<size_t>(request.id)].chunks.clear();
  free_.push_back(request.id);
  request = {};
}

void MpiCommunicator::ThrowIfFailed() {
  if (failure()) throw CommError(*failure());
}

void MpiCommunicator::Poll() {
  if (!kSimulator) control_.Poll();
  ThrowIfFailed();
}

void MpiCommunicator::WaitUntil(FunctionRef<bool()> done) {
  for (int looks = 0; !done(); ++looks) {
    Poll();
    if (looks > kLooks + kYields) {
      nanosleep(&kNap, nullptr);
    } else if (looks > kLooks) {
      sched_yield();
    }
  }
}

void MpiCommunicator::WaitFor(MPI_Request request) {
  if (kSimulator) {
    EQ_MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
    return;
  }
  WaitUntil([&] {
    int done = 0;
    EQ_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    return done != 0;
  });
}

void MpiCommunicator::SetPlace(int32_t step, int32_t layer, int32_t stage) {
  control_.SetPlace({step, layer, stage});
}

void MpiCommunicator::Elapse(double seconds) {
  if (models_compute_ && seconds > 0) ElapseSimulated(seconds);
}

void MpiCommunicator::Abort(std::string_view reason, FailureKind kind) {
  control_.Fail({rank_, control_.place(), kind, std::string(reason)});
}

void MpiCommunicator::Barrier() {
  ThrowIfFailed();
  MPI_Request request = MPI_REQUEST_NULL;
  EQ_MPI(MPI_Ibarrier(comm_, &request));
  WaitFor(request);
}

template <typename Number>
void MpiCommunicator::AllReduceNumbers(std::span<Number> values, Reduce op, MPI_Datatype type) {
  ThrowIfFailed();
  const auto ranks = static_cast<size_t>(size_);
  const size_t most =
      std::max<size_t>(1, std::min(kGatherBytes, chunk_bytes_) / (ranks * sizeof(Number)));
  std::vector<Number> all(std::min(most, values.size()) * ranks);
  while (!values.empty()) {
    const size_t count = std::min(most, values.size());
    MPI_Request request = MPI_REQUEST_NULL;
    EQ_MPI(MPI_Iallgather(values.data(), static_cast<int>(count), type, all.data(),
                          static_cast<int>(count), type, comm_, &request));
    WaitFor(request);
    std::copy_n(all.begin(), count, values.begin());
    for (size_t i = count; i < count * ranks; ++i) {
      values[i % count] = Combine(values[i % count], all[i], op);
    }
    values = values.subspan(count);
  }
}

void MpiCommunicator::AllReduce(std::span<double> values, Reduce op) {
  AllReduceNumbers(values, op, MPI_DOUBLE);
}

void MpiCommunicator::AllReduce(std::span<uint64_t> values, Reduce op) {
  AllReduceNumbers(values, op, MPI_UINT64_T);
}

void MpiCommunicator::Broadcast(std::span<std::byte> bytes, int32_t root) {
  ThrowIfFailed();
  EQ_CHECK(root >= 0 && root < size_, "root {} of {} ranks", root, size_);
  while (!bytes.empty()) {
    const size_t chunk = std::min(bytes.size(), chunk_bytes_);
    MPI_Request request = MPI_REQUEST_NULL;
    EQ_MPI(MPI_Ibcast(bytes.data(), static_cast<int>(chunk), MPI_BYTE, root, comm_, &request));
    WaitFor(request);
    bytes = bytes.subspan(chunk);
  }
}

void MpiCommunicator::Close() {
  Barrier();
  control_.Close();
  EQ_MPI(MPI_Comm_free(&comm_));
}

}  // namespace equitile::mpi

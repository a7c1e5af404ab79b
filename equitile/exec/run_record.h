// What happened on one rank in one run, by the clock: for statistics, traces, and for telling
// waiting for bytes from waiting for others.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/comm/communicator.h"

namespace equitile {

struct RunStats {
  double seconds = 0;          // until all output is at home
  double compute_seconds = 0;  // inside the kernel
  double pack_seconds = 0;     // packing, copying and unpacking, both ways
  double wait_seconds = 0;     // idle: nothing to pack or to compute until something arrives
  int64_t bytes_sent = 0, bytes_received = 0;
  int64_t buffer_bytes = 0;     // peak in the plan's terms (plan/predict/accounts.h)
  int64_t allocated_bytes = 0;  // all that the executor holds: packed home, padding, scratch too
};

struct RunEvent {
  enum class Kind : uint8_t {
    kPlan,
    kPack,
    kCompute,
    kWait,
    kSend,
    kReceive,
    // Of a whole video, beside self-attention.
    kLoad,
    kText,
    kLinear,
    kNorm,
    kTextAttention,
    kExchange,
    kSample,
    kDecode,
    kWrite
  };
  Kind kind = Kind::kCompute;
  double begin = 0, end = 0;  // Now()
  int32_t stage = -1;
  int32_t head_group = -1;  // of an exchange: its stage; rings have none
  int32_t peer = -1;        // of a transfer
  int64_t bytes = 0;
};

// Idle until a message of another rank was there.
struct RunWait {
  enum class For : uint8_t { kInputs, kPass, kOutput };
  For what = For::kInputs;
  int32_t stage = 0;
  double begin = 0, end = 0;
  int32_t peer = 0;
};

struct RunRecord {
  double begin = 0, end = 0;
  // [stages] when this rank gave its message of the kind to the network.
  std::vector<double> inputs_sent, passed, returned;
  std::vector<RunWait> waits;
  std::vector<RunEvent> events;

  void Clear(size_t stages);
};

// Collective. Of this rank's idle seconds, those in which something that it waits for has left its
// sender: by the clocks of all ranks, each counted from its own `begin`, which must be one moment
// (just after a barrier).
double ExposedSeconds(Communicator& comm, const RunRecord& record);

}  // namespace equitile

// Runs plans: moves packed tiles with comm, computes rows with kernel, brings output home. One per
// rank, for the life of the process: its buffers serve all layers and steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "equitile/base/thread_pool.h"
#include "equitile/comm/communicator.h"
#include "equitile/exec/agreement.h"
#include "equitile/exec/itinerary.h"
#include "equitile/exec/run_record.h"
#include "equitile/exec/wire.h"
#include "equitile/kernel/attention/attention.h"
#include "equitile/plan/core/plan.h"

namespace equitile {

struct ExecutorOptions {
  // bf16 halves the bytes; results then depend on who computes what.
  DType wire = DType::kF32;
  // Without, nothing is under way while a stage is computed: to see what overlapping is worth.
  bool overlap = true;
  // Simulators only: the seconds that work takes, instead of doing it. Output is then undefined.
  std::function<double(const Work& work)> modelled_seconds;
  double modelled_pack_seconds_per_byte = 0;  // then too: nothing is packed
  // Of plans and masks that are remembered (Prepare): a few layers of the largest masks, all layers
  // of ordinary ones.
  int64_t remembered_bytes = int64_t{256} << 20;
};

// How much of a row's attention each of its kept blocks holds, mean over the row's queries.
struct RowMasses {
  int32_t lane = 0, q_block = 0;
  std::vector<float> masses;  // of the row's kept blocks, ascending
};

// One self-attention over all ranks. Home tokens lie as HomeRows says.
struct LayerCall {
  int32_t step = -1, layer = -1;  // for messages about failures
  float scale = 0.0f;
  // Views [batch, tokens, heads, head_dim] (HomeRows::Input makes one of rows that exist only at
  // home), or producers; asked for home tokens only, numbered within their batch item.
  TokenSource q, k, v;
  float* out = nullptr;  // [home tokens][heads][head_dim]
  float* lse = nullptr;  // [heads][home tokens], or null
  // Filled with the rows that this rank has computed; null: nobody wants to know. Only for plans
  // that compute rows whole, and itineraries of f32.
  std::vector<RowMasses>* masses = nullptr;
};

struct ExecutorBuffers;

class Executor {
 public:
  Executor(Communicator& comm, ThreadPool& pool, ExecutorOptions options = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Collective. Lowers the plan and works out this rank's part of it; remembers the last ones, as
  // many as fit remembered_bytes, so that layers and steps with the same plan and mask pay only for
  // hashes. Throws InputError on
  // every rank where ranks were given different plans, masks, head_dims or arithmetics, naming one
  // that differs from rank 0, and where the wire would round integers.
  std::shared_ptr<const Itinerary> Prepare(const Plan& plan, const LaneMasks& masks,
                                           int64_t head_dim, Compute compute = Compute::kF32);

  // Collective; every rank with its own part of the same plan. Exchange plans give the same bits
  // on any number of ranks; plans that split rows agree within rounding.
  RunStats Run(const Itinerary& itinerary, const LayerCall& call);
  RunStats Run(const Plan& plan, const LaneMasks& masks, int64_t head_dim, const LayerCall& call);

  const RunRecord& LastRun() const;
  Communicator& comm() { return comm_; }
  ThreadPool& pool() { return pool_; }
  const ExecutorOptions& options() const { return options_; }
  Wire& wire() { return wire_; }

 private:
  Communicator& comm_;
  ThreadPool& pool_;
  ExecutorOptions options_;
  Wire wire_;
  std::shared_ptr<const HomeMap> homes_;  // of the last problem
  Problem homes_problem_;
  struct Known {
    RunIdentity identity;
    std::shared_ptr<const Itinerary> itinerary;
    int64_t bytes = 0;
  };
  void Remember(const RunIdentity& identity, std::shared_ptr<const Itinerary> itinerary);
  std::vector<Known> known_;  // latest first
  std::unique_ptr<ExecutorBuffers> buffers_;
};

}  // namespace equitile

#include "equitile/exec/executor.h"

#include <algorithm>

#include "equitile/base/error.h"
#include "equitile/exec/layer_run.h"
#include "equitile/plan/core/walker.h"

namespace equitile {

Executor::Executor(Communicator& comm, ThreadPool& pool, ExecutorOptions options)
    : comm_(comm),
      pool_(pool),
      options_(std::move(options)),
      wire_(comm, options_.wire),
      buffers_(std::make_unique<ExecutorBuffers>()) {}

Executor::~Executor() = default;

std::shared_ptr<const Itinerary> Executor::Prepare(const Plan& plan, const LaneMasks& masks,
                                                   int64_t head_dim, Compute compute) {
  if (compute != Compute::kF32 && options_.wire != DType::kF32) {
    throw InputError(
        "[exec] attention in {} with numbers on the wire as {}: integers travel as they are",
        ComputeName(compute), DTypeName(options_.wire));
  }
  if (plan.ranks() != comm_.size()) {
    throw InputError("[exec] a plan for {} ranks on {}; plan for as many as there are",
                     plan.ranks(), comm_.size());
  }
  const RunIdentity identity{
      .mask = masks.hash(), .plan = plan.hash(), .head_dim = head_dim, .compute = compute};
  CheckAgreement(comm_, identity);
  const auto known = std::find_if(known_.begin(), known_.end(),
                                  [&](const Known& k) { return k.identity == identity; });
  if (known != known_.end()) {
    std::rotate(known_.begin(), known, known + 1);
    return known_.front().itinerary;
  }
  if (homes_ == nullptr || !(homes_problem_ == plan.problem())) {
    homes_ = std::make_shared<const HomeMap>(plan.problem());
    homes_problem_ = plan.problem();
  }
  Remember(identity, std::make_shared<const Itinerary>(MakeItinerary(
                         Lower(plan, masks), homes_, masks, comm_.rank(), head_dim, compute)));
  return known_.front().itinerary;
}

void Executor::Remember(const RunIdentity& identity, std::shared_ptr<const Itinerary> itinerary) {
  const int64_t bytes = itinerary->Bytes();
  known_.insert(known_.begin(), {identity, std::move(itinerary), bytes});
  int64_t total = 0;
  size_t fits = 0;
  while (fits < known_.size() && total + known_[fits].bytes <= options_.remembered_bytes)
    total += known_[fits++].bytes;
  known_.resize(std::max<size_t>(fits, 1));
}

RunStats Executor::Run(const Itinerary& itinerary, const LayerCall& call) {
  EQ_CHECK(itinerary.rank == comm_.rank() && itinerary.ranks == comm_.size(),
           "rank {} of {} runs the part of rank {} of {}", comm_.rank(), comm_.size(),
           itinerary.rank, itinerary.ranks);
  LayerRun run(*this, *buffers_, itinerary, call);
  AbortOnError(comm_, [&] { Walk(itinerary.program, run); });
  return run.stats();
}

RunStats Executor::Run(const Plan& plan, const LaneMasks& masks, int64_t head_dim,
                       const LayerCall& call) {
  return Run(*Prepare(plan, masks, head_dim), call);
}

const RunRecord& Executor::LastRun() const { return buffers_->record; }

}  // namespace equitile

// The mean key of every head, of the step before. Taken from all keys before they are rounded it
// leaves the integers to what tells keys apart; softmax does not see it, whatever it is. So a stale
// mean of some tokens will do, and no rank waits for another to have it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/thread_pool.h"
#include "equitile/comm/communicator.h"
#include "equitile/exec/home_rows.h"
#include "equitile/model/wan/self_attention.h"
#include "equitile/pattern/block_grid.h"
#include "equitile/sparsity/source/source_state.h"

namespace equitile {

class KeyCenters {
 public:
  KeyCenters(int64_t layers, int64_t head_dim) : layers_(layers), head_dim_(head_dim) {}

  // Another video.
  void Begin();

  // Of these heads of the layer, [batch][heads] vectors of head_dim; empty before the first step
  // has ended.
  std::vector<const float*> Of(int32_t layer, std::span<const int64_t> heads) const;

  // Adds keys of these heads, those of the call that are at home here. lanes, tokens: of the whole
  // layer, the same in every call.
  void Add(const SelfAttentionCall& call, const Lanes& lanes, int64_t tokens,
           std::span<const int64_t> heads, const HomeRows& home, ThreadPool& pool);

  // Collective, after the last layer: what was added becomes the centers. As sums of integers,
  // which have no order: the same on any number of ranks.
  void EndStep(Communicator& comm);

  // Between two steps.
  SourceState State() const;
  void Restore(const SourceState& state);  // throws InputError where it is another run's

 private:
  size_t At(int64_t layer, int64_t lane) const {
    return static_cast<size_t>((layer * lanes_.Count() + lane) * head_dim_);
  }

  int64_t layers_, head_dim_;
  Lanes lanes_;
  int64_t keys_ = 0;            // that a sum has, on all ranks
  std::vector<uint64_t> sums_;  // [layers][lanes][head_dim] of this step so far, or empty
  std::vector<float> centers_;  // [layers][lanes][head_dim], or empty
};

}  // namespace equitile

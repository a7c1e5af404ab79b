// What sources of masks know about the run that they serve.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "equitile/base/thread_pool.h"
#include "equitile/comm/communicator.h"
#include "equitile/exec/executor.h"
#include "equitile/pattern/block_grid.h"
#include "equitile/pattern/lane_masks.h"
#include "equitile/pattern/token_grid.h"

namespace equitile {

// The share of attention that a head shall keep, by the noise level of the step.
using HeadMass = std::function<double(double sigma, int64_t layer, int64_t head)>;

struct SourceContext {
  Communicator* comm = nullptr;
  ThreadPool* pool = nullptr;
  Lanes lanes;           // batch = guidance passes
  BlockGrid grid;        // queries and keys alike
  TokenGrid token_grid;  // of the video, in home order
  int64_t head_dim = 0;
  int64_t layers = 0;
  std::vector<float> sigmas;     // [steps + 1]
  Executor* executor = nullptr;  // for those who run layers of their own; null: they cannot

  int64_t Steps() const { return static_cast<int64_t>(sigmas.size()) - 1; }
};

// Masks of these lanes and blocks, with the same tail everywhere and nothing kept in any case.
inline LaneMasks ShapeOf(const SourceContext& context, Tail tail) {
  return LaneMasks({.blocks = BlockMask(context.lanes, context.grid),
                    .token_grid = context.token_grid,
                    .orders = {},
                    .tails = std::vector<Tail>(static_cast<size_t>(context.lanes.Count()), tail)});
}

}  // namespace equitile

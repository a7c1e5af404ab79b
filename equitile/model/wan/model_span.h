// What a rank's thread did for a model besides self-attention, by the rank's clock: for timelines.
#pragma once

#include <cstdint>

#include "equitile/base/function_ref.h"

namespace equitile {

struct ModelSpan {
  enum class Kind : uint8_t {
    kLinear,         // with the norms and rotations that are fused with it
    kNorm,           // over all heads of q or k
    kTextAttention,  // cross-attention
    kExchange,       // velocities to rank 0, latents from it
    kSample          // guidance and sampler
  };
  Kind kind = Kind::kLinear;
  int32_t step = 0;    // counted from 0
  int32_t layer = -1;  // -1: of none
  double begin = 0, end = 0;
};

using ModelSpanSink = FunctionRef<void(const ModelSpan& span)>;

}  // namespace equitile

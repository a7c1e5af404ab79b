// Bytes that each rank sends and receives for one layer, straight from a Plan and a mask, without
// lowering.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/pattern/lane_masks.h"
#include "equitile/plan/core/home_map.h"
#include "equitile/plan/core/plan.h"

namespace equitile {

// What a token of one head weighs on the wire.
struct WireFormat {
  int64_t head_dim = 128;
  int64_t value_bytes = 4;  // f32
  int64_t token_bytes = 0;  // of a query, key or value with its scale; 0: head_dim values
  int64_t out_bytes = 0;    // of an output, likewise

  int64_t QBytes() const { return token_bytes != 0 ? token_bytes : head_dim * value_bytes; }
  int64_t KvBytes() const { return 2 * QBytes(); }
  int64_t OBytes() const {  // log-sum-exp is always f32
    return (out_bytes != 0 ? out_bytes : head_dim * value_bytes) + 4;
  }
  int64_t MeansBytes() const { return 2 * head_dim * 8; }  // of a block: exact sums, as doubles
  friend bool operator==(const WireFormat&, const WireFormat&) = default;
};

struct Traffic {
  std::vector<int64_t> sent, received;  // [ranks] bytes; what stays on a rank is not counted

  int64_t OfRank(int32_t rank) const {
    return sent[static_cast<size_t>(rank)] + received[static_cast<size_t>(rank)];
  }
  int64_t Max() const;
  double Mean() const;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

// Adds what Cargo::kMeans moves.
void AddMeansTraffic(const Plan& plan, const HomeMap& homes, const LaneMasks& masks,
                     const WireFormat& wire, Traffic& traffic);

Traffic CountTraffic(const Plan& plan, const HomeMap& homes, const BlockMask& mask,
                     const WireFormat& wire);

}  // namespace equitile

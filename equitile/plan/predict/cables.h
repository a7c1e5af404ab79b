// What ranks of a node share: one way out to other nodes and one way in, each with a bandwidth that
// the messages on it divide evenly. Apart from simulate.cc, whose ranks have ports of their own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "equitile/plan/predict/machine.h"

namespace equitile {

// Messages that set out together, from one node to another.
struct CableFlow {
  double ready = 0;
  int32_t from_node = 0, to_node = 0;
  int64_t bytes = 0, largest = 0;

  void Add(int64_t message_bytes, double message_ready) {
    bytes += message_bytes;
    largest = std::max(largest, message_bytes);
    ready = std::max(ready, message_ready);
  }
};

// Flows are found one after the other, always in the same order, by whoever walks a schedule; when
// all are known they are carried; when that has moved the schedule, all is done again.
class Cables {
 public:
  // Times settle stage by stage. Of 24 layouts and masks on 8 ranks all settled in 8 rounds; 4 left
  // errors of up to 3 %.
  static constexpr int kMostRounds = 8;

  explicit Cables(const Cluster& cluster);

  bool any() const { return bytes_per_second_ > 0; }  // or else cables are no limit
  // When the flow with this number, counted from the last CarryAll, was through both cables at that
  // time; before the first, 0.
  double Add(const CableFlow& flow);
  // Carries what was added; false if nothing was, or all times have settled.
  bool CarryAll();

 private:
  void CarryOneWay(const std::vector<int32_t>& flows_by_ready);

  double bytes_per_second_ = 0;
  int32_t nodes_ = 0;
  std::vector<CableFlow> flows_;
  std::vector<double> carried_;  // [flows]
};

}  // namespace equitile

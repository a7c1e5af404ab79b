#include "equitile/plan/predict/cables.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr double kSettled = 1e-4;  // of the longest time

size_t Index(int32_t i) { return static_cast<size_t>(i); }

// A flow is through when its largest message is. As many of that size would take as long.
double Messages(const CableFlow& flow) {
  return static_cast<double>(flow.bytes) / static_cast<double>(flow.largest);
}

}  // namespace

Cables::Cables(const Cluster& cluster) {
  if (!cluster.HasCables()) return;
  bytes_per_second_ = cluster.cable_bytes_per_second;
  nodes_ = *std::max_element(cluster.node_of.begin(), cluster.node_of.end()) + 1;
}

double Cables::Add(const CableFlow& flow) {
  flows_.push_back(flow);
  return flows_.size() <= carried_.size() ? carried_[flows_.size() - 1] : 0;
}

bool Cables::CarryAll() {
  if (flows_.empty()) return false;
  std::vector<double> before = std::exchange(carried_, std::vector<double>(flows_.size(), 0));
  std::vector<int32_t> order(flows_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return flows_[Index(a)].ready < flows_[Index(b)].ready;
  });
  std::vector<std::vector<int32_t>> out(Index(nodes_)), in(Index(nodes_));
  for (int32_t i : order) {
    out[Index(flows_[Index(i)].from_node)].push_back(i);
    in[Index(flows_[Index(i)].to_node)].push_back(i);
  }
  for (const std::vector<int32_t>& way : out) CarryOneWay(way);
  for (const std::vector<int32_t>& way : in) CarryOneWay(way);
  flows_.clear();
  if (before.empty()) return true;
  EQ_CHECK(before.size() == carried_.size(), "{} flows, then {}", before.size(), carried_.size());
  const double longest = *std::max_element(carried_.begin(), carried_.end());
  for (size_t i = 0; i < before.size(); ++i) {
    if (std::abs(before[i] - carried_[i]) > kSettled * longest) return true;
  }
  return false;
}

// Every message under way gets the same share; `each` is what one that was there from the start
// would have got by now.
void Cables::CarryOneWay(const std::vector<int32_t>& flows_by_ready) {
  struct Under {
    double until;  // of `each`
    int32_t flow;
    bool operator>(const Under& other) const { return until > other.until; }
  };
  std::priority_queue<Under, std::vector<Under>, std::greater<>> under_way;
  double now = 0, each = 0, messages = 0;
  auto finish_until = [&](double moment) {
    while (!under_way.empty()) {
      const auto [until, flow] = under_way.top();
      const double end = now + (until - each) * messages / bytes_per_second_;
      if (end > moment) {
        each += (moment - now) * bytes_per_second_ / messages;
        break;
      }
      under_way.pop();
      messages = under_way.empty() ? 0 : messages - Messages(flows_[Index(flow)]);
      now = end;
      each = until;
      carried_[Index(flow)] = std::max(carried_[Index(flow)], end);
    }
    now = moment;
  };
  for (int32_t i : flows_by_ready) {
    const CableFlow& flow = flows_[Index(i)];
    finish_until(flow.ready);
    under_way.push({each + static_cast<double>(flow.largest), i});
    messages += Messages(flow);
  }
  finish_until(std::numeric_limits<double>::infinity());
}

}  // namespace equitile

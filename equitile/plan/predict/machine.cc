#include "equitile/plan/predict/machine.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "equitile/base/error.h"

namespace equitile {
namespace {

struct Measured {
  double value;
  std::string_view unit;
};

Measured SplitUnit(std::string_view part, std::string_view whole) {
  double value = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  if (error != std::errc{} || !(value > 0) || !std::isfinite(value)) {
    throw InputError(
        "[plan] link '{}': '{}' is not a positive number with a unit; write it like 100Gb/s,2us",
        whole, part);
  }
  return {value, part.substr(static_cast<size_t>(end - part.data()))};
}

double BytesPerSecond(std::string_view part, std::string_view whole) {
  const auto [value, unit] = SplitUnit(part, whole);
  double scale = 1;
  std::string_view rest = unit;
  if (!rest.empty()) {
    switch (rest.front()) {
      case 'k':
      case 'K':
        scale = 1e3;
        break;
      case 'M':
        scale = 1e6;
        break;
      case 'G':
        scale = 1e9;
        break;
      case 'T':
        scale = 1e12;
        break;
      default:
        break;
    }
    if (scale != 1) rest.remove_prefix(1);
  }
  if (rest == "b/s" || rest == "bps") return value * scale / 8;
  if (rest == "B/s") return value * scale;
  throw InputError("[plan] link '{}': unit '{}' is none of Gb/s, GB/s, Mb/s, MB/s", whole, unit);
}

double Seconds(std::string_view part, std::string_view whole) {
  const auto [value, unit] = SplitUnit(part, whole);
  if (unit == "s") return value;
  if (unit == "ms") return value / 1e3;
  if (unit == "us" || unit == "µs") return value / 1e6;
  if (unit == "ns") return value / 1e9;
  throw InputError("[plan] link '{}': unit '{}' is none of ns, us, ms, s", whole, unit);
}

void CheckRate(double value, const char* what) {
  if (!(value > 0) || !std::isfinite(value))
    throw InputError("[plan] {} {}: must be positive", what, value);
}

// 10^18 picoseconds fit 64 bits, and no row of attention takes eleven days.
int64_t Picoseconds(double seconds, const char* what) {
  constexpr double kMostSeconds = 1e6;
  if (!(seconds <= kMostSeconds))
    throw InputError("[plan] {:g} seconds per {}: must be at most {:g}", seconds, what,
                     kMostSeconds);
  return std::llround(seconds * 1e12);
}

void CheckLink(const Link& link, const char* what) {
  CheckRate(link.bytes_per_second, what);
  if (!(link.latency_seconds >= 0) || !std::isfinite(link.latency_seconds)) {
    throw InputError("[plan] {} latency {}: must not be negative", what, link.latency_seconds);
  }
}

}  // namespace

Link ParseLink(std::string_view text) {
  const size_t comma = text.find(',');
  if (comma == std::string_view::npos) {
    throw InputError("[plan] link '{}': write bandwidth and latency, like 100Gb/s,2us", text);
  }
  return {.latency_seconds = Seconds(text.substr(comma + 1), text),
          .bytes_per_second = BytesPerSecond(text.substr(0, comma), text)};
}

double ParseBandwidth(std::string_view text) { return BytesPerSecond(text, text); }

std::string LinkText(const Link& link) {
  return fmt::format("{:g}Gb/s,{:g}us", link.bytes_per_second * 8e-9, link.latency_seconds * 1e6);
}

double Cluster::BlockSeconds(const BlockGrid& grid) const {
  const double flops = 4.0 * static_cast<double>(wire.head_dim) *
                       static_cast<double>(grid.block_tokens) *
                       static_cast<double>(grid.block_tokens);
  return flops / (gflops * 1e9);
}

double Cluster::FarBytesPerSecond() const {
  if (!HasCables()) return link.bytes_per_second;
  std::map<int32_t, int64_t> ranks;
  int64_t largest = 1;
  for (int32_t node : node_of) largest = std::max(largest, ++ranks[node]);
  return std::min(link.bytes_per_second, cable_bytes_per_second / static_cast<double>(largest));
}

std::vector<int32_t> EvenNodes(int32_t ranks, int32_t size) {
  std::vector<int32_t> node_of(static_cast<size_t>(std::max(ranks, 0)));
  for (int32_t rank = 0; rank < ranks; ++rank) node_of[static_cast<size_t>(rank)] = rank / size;
  return node_of;
}

void SetNodes(std::vector<int32_t> node_of, Cluster& cluster) {
  const size_t nodes = std::set<int32_t>(node_of.begin(), node_of.end()).size();
  if (nodes == 1 || nodes == node_of.size()) node_of.clear();
  cluster.node_of = std::move(node_of);
}

void CheckCluster(const Cluster& cluster, int32_t ranks) {
  CheckRate(cluster.gflops, "kernel gflops");
  if (!(cluster.row_seconds >= 0) || !std::isfinite(cluster.row_seconds)) {
    throw InputError("[plan] row seconds {}: must not be negative", cluster.row_seconds);
  }
  if (!(cluster.pack_seconds_per_byte >= 0) || !std::isfinite(cluster.pack_seconds_per_byte)) {
    throw InputError("[plan] pack seconds per byte {}: must not be negative",
                     cluster.pack_seconds_per_byte);
  }
  if (!(cluster.launch_seconds >= 0) || !std::isfinite(cluster.launch_seconds)) {
    throw InputError("[plan] launch seconds {}: must not be negative", cluster.launch_seconds);
  }
  CheckLink(cluster.link, "link");
  if (!cluster.node_of.empty()) {
    CheckLink(cluster.node_link, "node link");
    if (std::ssize(cluster.node_of) != ranks) {
      throw InputError("[plan] nodes of {} ranks for {} ranks: one for each",
                       cluster.node_of.size(), ranks);
    }
    for (int32_t node : cluster.node_of) {
      if (node < 0 || node >= ranks)
        throw InputError("[plan] node {}: nodes of {} ranks are 0 to {}", node, ranks, ranks - 1);
    }
  }
  if (cluster.cable_bytes_per_second != 0) CheckRate(cluster.cable_bytes_per_second, "cable");
  if (cluster.wire.head_dim <= 0 || cluster.wire.value_bytes <= 0) {
    throw InputError("[plan] head_dim {}: must be positive", cluster.wire.head_dim);
  }
  if (!cluster.speeds.empty() && std::ssize(cluster.speeds) != ranks) {
    throw InputError("[plan] {} speeds for {} ranks: one for each", cluster.speeds.size(), ranks);
  }
  for (double speed : cluster.speeds) CheckRate(speed, "speed");
}

void ApplyMachine(const Machine& machine, int64_t block, std::string_view dtype, Cluster& cluster) {
  const KernelRate* best = nullptr;
  double best_distance = std::numeric_limits<double>::infinity();
  for (const KernelRate& rate : machine.kernel) {
    auto distance = [](int64_t a, int64_t b) {
      return std::abs(std::log(static_cast<double>(a) / static_cast<double>(b)));
    };
    // A wrong dtype counts more than any sizes can (head_dim and block differ by at most 2^9
    // together).
    const double d = distance(rate.head_dim, cluster.wire.head_dim) + distance(rate.block, block) +
                     (rate.dtype == dtype ? 0 : 100);
    if (d < best_distance) {
      best = &rate;
      best_distance = d;
    }
  }
  if (best != nullptr) {
    cluster.gflops = best->gflops;
    cluster.row_seconds = best->row_seconds;
  }
  if (machine.pack_bytes_per_second > 0)
    cluster.pack_seconds_per_byte = 1 / machine.pack_bytes_per_second;
  if (machine.launch_seconds > 0) cluster.launch_seconds = machine.launch_seconds;
  for (const NamedLink& named : machine.links) {
    if (named.name == "network") cluster.link = cluster.node_link = named.link;
  }
  for (const NamedLink& named : machine.links) {
    if (named.name == "node") cluster.node_link = named.link;
    if (named.name == "cable") cluster.cable_bytes_per_second = named.link.bytes_per_second;
  }
}

std::string MissingRates(const Machine& machine, std::string_view file, std::string_view attention,
                         std::string_view linear) {
  const auto lacks = [](const auto& rates, std::string_view dtype) {
    return dtype != "f32" &&
           std::ranges::none_of(rates, [&](const auto& rate) { return rate.dtype == dtype; });
  };
  const bool no_attention = lacks(machine.kernel, attention);
  if (!no_attention && !lacks(machine.linear, linear)) return "";
  return fmt::format(
      "{}: has no rates of {} in {}; estimates take those of f32 (`equitile bench machine` "
      "measures "
      "anew)",
      file, no_attention ? "attention" : "linear layers", no_attention ? attention : linear);
}

CostModel CostInPicoseconds(const Cluster& cluster, const BlockGrid& grid) {
  return {.block = std::max<int64_t>(1, Picoseconds(cluster.BlockSeconds(grid), "block")),
          .row = Picoseconds(cluster.row_seconds, "row")};
}

}  // namespace equitile

// Rates of the machine that a plan is made for. Values only: they are measured elsewhere and read
// from files in io.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/plan/core/plan.h"
#include "equitile/plan/predict/cost_model.h"
#include "equitile/plan/predict/traffic.h"

namespace equitile {

struct Link {
  double latency_seconds = 2e-6;
  double bytes_per_second = 12.5e9;  // each way at once

  friend bool operator==(const Link&, const Link&) = default;
};

// "100Gb/s,2us" (bits: b, bytes: B; k, M, G, T; latency in ns, us, ms, s). Throws InputError.
Link ParseLink(std::string_view text);
std::string LinkText(const Link& link);
double ParseBandwidth(std::string_view text);  // "10Gb/s", in bytes per second; throws InputError

// What `machine.json` holds: one process's kernel rates and the links between processes.
struct KernelRate {
  int64_t head_dim = 0, block = 0;
  std::string dtype;
  double gflops = 0;       // of one rank with all its threads, on kept blocks
  double row_seconds = 0;  // on top of its blocks, per row

  friend bool operator==(const KernelRate&, const KernelRate&) = default;
};
// Of linear layers, in an arithmetic ("f32", "int16", "int8"). Not for plans: for estimates.
struct LinearRate {
  std::string dtype;
  double gflops = 0;  // of one rank with all its threads

  friend bool operator==(const LinearRate&, const LinearRate&) = default;
};
struct NamedLink {
  // "network" between two ranks of different nodes, alone; "node" inside one; "cable" what all
  // ranks of a node share to and from other nodes, where that is less than their links together.
  std::string name;
  Link link;

  friend bool operator==(const NamedLink&, const NamedLink&) = default;
};
struct Machine {
  std::string target;
  int64_t threads = 1;
  double peak_gflops = 0;
  double pack_bytes_per_second = 0;  // see Cluster::pack_seconds_per_byte; 0: not measured
  double launch_seconds = 0;         // see Cluster; 0: not measured
  std::vector<KernelRate> kernel;
  std::vector<LinearRate> linear;  // empty: measured before there were integers
  std::vector<NamedLink> links;
  std::vector<int32_t> node_of;  // [ranks] of the job that measured the links, or empty

  friend bool operator==(const Machine&, const Machine&) = default;
};

// The ranks as the cost model sees them.
struct Cluster {
  double gflops = 100;  // of a rank of speed 1
  double row_seconds = 0;
  // Starting to compute a stage: a kernel's launch on a GPU, waking the threads here. Only the
  // paper's estimate has it (PaperLatency).
  double launch_seconds = 5e-6;
  // Between a rank's tensors and packed strips, either way, per byte of f32; 0: free.
  double pack_seconds_per_byte = 0;
  Link link;       // between two ranks of different nodes, alone
  Link node_link;  // inside a node
  // All ranks of a node together, to other nodes and at once from them; 0: what their links carry.
  double cable_bytes_per_second = 0;
  std::vector<int32_t> node_of;  // [ranks], counted from 0; empty: `link` everywhere
  std::vector<double> speeds;    // [ranks] relative to gflops, or empty: all 1
  WireFormat wire;

  double Speed(int32_t rank) const {
    return speeds.empty() ? 1.0 : speeds[static_cast<size_t>(rank)];
  }
  bool SameNode(int32_t a, int32_t b) const { return !node_of.empty() && NodeOf(a) == NodeOf(b); }
  int32_t NodeOf(int32_t rank) const { return node_of[static_cast<size_t>(rank)]; }
  bool HasCables() const { return !node_of.empty() && cable_bytes_per_second > 0; }
  // What a rank gets between nodes while all ranks of the largest node use their cable.
  double FarBytesPerSecond() const;
  double BlockSeconds(
      const BlockGrid& grid) const;  // one full block at speed 1: 4·head_dim·block² flops
  friend bool operator==(const Cluster&, const Cluster&) = default;
};

// Consecutive ranks, `size` of them on every node but the last.
std::vector<int32_t> EvenNodes(int32_t ranks, int32_t size);

// Nodes make a difference where there are several and one of them has several ranks; elsewhere
// `node_of` becomes empty.
void SetNodes(std::vector<int32_t> node_of, Cluster& cluster);

// Throws InputError: rates not positive, speeds not one per rank or not positive and finite.
void CheckCluster(const Cluster& cluster, int32_t ranks);

// Takes rates and links of `machine`: of the kernel rates with this dtype, or any if there is none,
// the one whose head_dim and block are nearest (in ratio); a network link without one for nodes is
// both. What the machine does not say stays. Who shares a node is the job's business: SetNodes.
void ApplyMachine(const Machine& machine, int64_t block, std::string_view dtype, Cluster& cluster);

// What estimates of attention and linear layers in these types need and the machine's `file` does
// not say, in one line; "" where nothing is missing.
std::string MissingRates(const Machine& machine, std::string_view file, std::string_view attention,
                         std::string_view linear = "f32");

// Picoseconds, so that the costs of the smallest blocks are still large integers. Throws InputError
// for a block or row of more than 10^6 seconds.
CostModel CostInPicoseconds(const Cluster& cluster, const BlockGrid& grid);

}  // namespace equitile

// How long heads, layers and steps take with what is chosen for them, from the rates of a machine:
// what a search saves time by. The same machine gives the same seconds.
#pragma once

#include <cstdint>
#include <span>

#include "equitile/model/wan/wan_config.h"
#include "equitile/pattern/head_pattern.h"
#include "equitile/plan/planners/planner.h"
#include "equitile/plan/predict/machine.h"

namespace equitile {

struct SpeedPlace {
  WanConfig model;
  TokenGrid grid;
  int64_t block_tokens = 64;
  int64_t text_rows = 0, passes = 1;
  int32_t ranks = 1;
};

class SpeedModel {
 public:
  SpeedModel(const Machine& machine, const SpeedPlace& place);

  // One head of one pass, by itself on one rank: its blocks, its rows, and its queries, keys and
  // values brought into its order; what is not kept costs a key per block where it has a tail. A
  // head that keeps nothing is not even brought.
  double HeadSeconds(double density, Tail tail) const;
  // Self-attention of a layer, all passes, on the ranks: until the last of them is done.
  double LayerSeconds(std::span<const HeadPattern> heads) const;
  double DenseLayerSeconds() const { return dense_layer_seconds_; }
  // All of a step but self-attention.
  double RestSeconds() const { return rest_seconds_; }

  double Blocks() const { return blocks_; }  // of one head
  int32_t ranks() const { return place_.ranks; }

  // Of whole runs: dense over what they become with so many dense steps and, in the others, so many
  // seconds of self-attention in all.
  double Speedup(int64_t dense_steps, int64_t sparse_steps, double sparse_seconds) const;
  // The seconds of self-attention that give a speed-up; below 0: there are none.
  double SecondsFor(double speedup, int64_t dense_steps, int64_t sparse_steps) const;

 private:
  double DenseStepSeconds() const;

  SpeedPlace place_;
  PlanOptions plan_;
  double block_seconds_ = 0, row_seconds_ = 0, pack_seconds_ = 0, rest_seconds_ = 0,
         dense_layer_seconds_ = 0;
  double blocks_ = 0, rows_ = 0;
};

}  // namespace equitile

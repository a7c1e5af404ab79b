// Masks that layers keep for some steps, with their ages: what a run has to remember, and what goes
// into its checkpoints.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/comm/communicator.h"
#include "equitile/sparsity/source/mask_source.h"

namespace equitile {

class MasksInForce {
 public:
  // shape: lanes, grid and tails of all masks, and their orders unless Set brings others; its
  // blocks are not looked at. token_grid: of the video.
  MasksInForce(LaneMasks shape, const TokenGrid& token_grid, int64_t layers)
      : shape_(std::move(shape)),
        token_grid_(token_grid),
        layers_(static_cast<size_t>(layers)) {}

  // Computed steps since the layer's masks were made; -1: it has none.
  int64_t AgeOf(int32_t layer) const { return At(layer).age; }
  // The layer's masks, which are a step older after this.
  LaneMasks Use(int32_t layer);
  const LaneMasks& MasksOf(int32_t layer) const { return At(layer).masks; }  // those it has
  void Set(int32_t layer, LaneMasks masks);  // of age 0: not used yet

  const LaneMasks& shape() const { return shape_; }
  int64_t Bytes() const;
  SourceState State() const;
  void Restore(const SourceState& state);  // throws InputError where it is another run's

 private:
  struct Layer {
    LaneMasks masks;
    int64_t age = -1;
  };
  const Layer& At(int32_t layer) const { return layers_[static_cast<size_t>(layer)]; }

  LaneMasks shape_;
  TokenGrid token_grid_;
  std::vector<Layer> layers_;
};

// Collective: rows that one rank has filled and all others left empty, on every rank.
void GatherRows(Communicator& comm, BlockMask& mask);

}  // namespace equitile

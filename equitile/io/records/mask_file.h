// Masks on disk: an .npy array of blocks, and the .json beside it that says what the blocks are
// made of.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "equitile/pattern/lane_masks.h"
#include "equitile/pattern/token_grid.h"

namespace equitile {

// m.npy: bool or uint8, or int64 of 0 and 1, [lanes, q_blocks, kv_blocks], [layers, lanes,
// q_blocks, kv_blocks] or [steps, layers, lanes, q_blocks, kv_blocks], elements 0 or 1. m.json, if
// it exists: any of version (1), batch, heads, block, q_tokens, kv_tokens, grid [F, H, W], text
// {before, after}, home_order ("fhw", "hilbert", "tiles:4x8x8", ...: the transformer's own), orders
// (one, or one per lane), tails ("none" or "mean", or one per lane), layer, step, method. What it
// does not say: batch 1, block 64, the grid's tokens or full blocks, fhw at home, every lane in
// home order, no tails.
struct MaskFile {
  std::vector<BlockMask> layers;   // [steps][layers], at least one; all of the same lanes and grid
  bool has_layer_axis = false;     // the array has four axes or five
  int64_t steps = 0;               // the first of five axes; 0: there is none
  std::vector<TokenOrder> orders;  // [lanes]
  std::vector<Tail> tails;         // [lanes]; empty: none
  std::optional<TokenGrid>
      grid;  // always there when a lane is not in home order, or that is not fhw
  // Counted from 0: the first layer and the first step of the model that the masks are for. Without
  // them, and without such an axis: for every layer, every step.
  std::optional<int64_t> layer, step;
  std::string method;  // that found them, as in --attention: "static", "sta"; "": nobody says

  TokenOrder home() const { return grid ? grid->home : TokenOrder::kFHW; }
  const Lanes& lanes() const { return layers.front().lanes(); }
  LaneMasks MasksOf(size_t index) const;  // layers[index] with what belongs to it
};

// Masks of one layer in one step, for a run whose tokens lie on `grid`.
MaskFile MaskFileOf(const LaneMasks& masks, const TokenGrid& grid, int64_t step, int64_t layer);

// By its name, .npz or .pt, which only the Python module reads; ReadMaskFile says so.
bool IsArchiveOfMasks(const std::filesystem::path& path);

// Throws InputError, with the file's name, for whatever is not as above or does not fit together.
MaskFile ReadMaskFile(const std::filesystem::path& path);

// Both files, each atomically; between the two a reader may find the new description beside the old
// array.
void WriteMaskFile(const std::filesystem::path& path, const MaskFile& mask);

// Block masses in place of a mask of one layer: float32 [lanes, q_blocks, kv_blocks], beside the
// description of that mask.
void WriteMassFile(const std::filesystem::path& path, const MaskFile& mask,
                   std::span<const float> masses);

// The mask for `batch` items: itself if it has as many; a mask of one item is repeated. Throws
// InputError otherwise.
MaskFile WithBatch(const MaskFile& mask, int64_t batch);

}  // namespace equitile

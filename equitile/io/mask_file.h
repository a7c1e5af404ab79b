// Masks on disk: an .npy array of blocks, and the .json beside it that says what the blocks are
// made of.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "equitile/pattern/block_mask.h"
#include "equitile/pattern/token_grid.h"

namespace equitile {

// m.npy: bool or uint8, [lanes, q_blocks, kv_blocks] or [layers, lanes, q_blocks, kv_blocks],
// elements 0 or 1. m.json, if it exists: any of version (1), batch, heads, block, q_tokens,
// kv_tokens, grid [F, H, W], text {before, after}, orders ("hwf", or one per lane), layer, step.
// What it does not say: batch 1, block 64, the grid's tokens or full blocks, fhw.
struct MaskFile {
  std::vector<BlockMask> layers;       // at least one; all of the same lanes and grid
  bool has_layer_axis = false;         // the array has four axes
  std::vector<TokenOrder> orders;      // [lanes]
  std::optional<TokenGrid> grid;       // always there when an order is not fhw
  std::optional<int64_t> layer, step;  // of the model, where the first mask was taken

  const Lanes& lanes() const { return layers.front().lanes(); }
};

// Throws InputError, with the file's name, for whatever is not as above or does not fit together.
MaskFile ReadMaskFile(const std::filesystem::path& path);

// Both files, each atomically; between the two a reader may find the new description beside the old
// array.
void WriteMaskFile(const std::filesystem::path& path, const MaskFile& mask);

// The mask for `batch` items: itself if it has as many; a mask of one item is repeated. Throws
// InputError otherwise.
MaskFile WithBatch(const MaskFile& mask, int64_t batch);

}  // namespace equitile

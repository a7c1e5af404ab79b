#include "equitile/sparsity/published/static_masks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "equitile/base/error.h"

namespace equitile {
namespace {

BlockGrid BlocksOf(const StaticMaskPlace& place) {
  return {place.grid.Tokens(), place.grid.Tokens(), place.block_tokens};
}

// All lanes as the first of `one`, in one order.
LaneMasks ForAllLanes(const StaticMaskPlace& place, const BlockMask& one, TokenOrder order) {
  BlockMask blocks(place.lanes, one.grid());
  for (int64_t lane = 0; lane < blocks.LaneCount(); ++lane) {
    for (int64_t q = 0; q < blocks.QBlocks(); ++q)
      std::ranges::copy(one.Row(0, q), blocks.MutableRow(lane, q).begin());
  }
  const std::vector<TokenOrder> orders(static_cast<size_t>(place.lanes.Count()), order);
  return LaneMasks(
      {.blocks = std::move(blocks), .token_grid = place.grid, .orders = orders, .tails = {}});
}

// Rows and columns of blocks that hold text.
void KeepText(const TokenGrid& grid, BlockMask& mask) {
  const Range video = {grid.text_before, grid.Tokens() - grid.text_after};
  const auto has_text = [&](Range tokens) {
    return tokens.begin < video.begin || tokens.end > video.end;
  };
  for (int64_t q = 0; q < mask.QBlocks(); ++q) {
    const bool all = has_text(mask.grid().QBlockTokens(q));
    for (int64_t kv = 0; kv < mask.KvBlocks(); ++kv)
      if (all || has_text(mask.grid().KvBlockTokens(kv))) mask.Set(0, q, kv);
  }
}

// A stretch of places of one frame inside a block.
struct Stretch {
  int64_t frame;
  Range places;
};

std::vector<Stretch> StretchesOf(const TokenGrid& grid, Range tokens) {
  const int64_t places = grid.height * grid.width;
  const int64_t begin = std::max<int64_t>(0, tokens.begin - grid.text_before);
  const int64_t end = std::min(grid.VideoTokens(), tokens.end - grid.text_before);
  std::vector<Stretch> stretches;
  for (int64_t at = begin; at < end;) {
    const int64_t frame = at / places, stop = std::min(end, (frame + 1) * places);
    stretches.push_back({frame, {at - frame * places, stop - frame * places}});
    at = stop;
  }
  return stretches;
}

class RadialRule {
 public:
  RadialRule(const StaticMaskPlace& place, const RadialOptions& options)
      : places_(place.grid.height * place.grid.width), block_(place.block_tokens) {
    for (int64_t distance = 0; distance < place.grid.frames; ++distance)
      width_.push_back(Width(distance, options.decay));
  }

  bool Keeps(const std::vector<Stretch>& queries, const std::vector<Stretch>& keys) const {
    int64_t rows = 0, seen = 0, well_seen = 0;
    for (const Stretch& q : queries) rows += q.places.size();
    for (const Stretch& k : keys) {
      for (int64_t place = k.places.begin; place < k.places.end; ++place) {
        int64_t count = 0;
        for (const Stretch& q : queries) count += CountNear(q, k.frame, place);
        seen += count > 0;
        well_seen += 3 * count > rows;
      }
    }
    return 10 * well_seen > 6 * seen;
  }

 private:
  // How far two places may be apart; -1: no pair of these frames belongs together.
  int64_t Width(int64_t distance, double decay) const {
    if (distance <= 1) return places_;
    const double reach = std::ldexp(1.0, std::bit_width(static_cast<uint64_t>(places_)) -
                                             std::bit_width(static_cast<uint64_t>(distance)));
    const auto block = static_cast<double>(block_);
    if (reach < block && distance % static_cast<int64_t>(block / reach) != 0) return -1;
    return static_cast<int64_t>(
        std::min(static_cast<double>(places_), std::max(decay * reach, block)));
  }

  int64_t CountNear(const Stretch& queries, int64_t frame, int64_t place) const {
    if (frame == 0) return queries.places.size();
    const int64_t width = width_[static_cast<size_t>(std::abs(queries.frame - frame))];
    return std::max<int64_t>(0, std::min(queries.places.end, place + width + 1) -
                                    std::max(queries.places.begin, place - width));
  }

  int64_t places_, block_;
  std::vector<int64_t> width_;  // [frames] by distance
};

// [tiles along the axis]: which tiles each sees.
std::vector<Range> WindowsOf(int64_t tiles, int64_t window) {
  std::vector<Range> windows;
  const int64_t half = window / 2;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t center = std::max(half, std::min(tile, tiles - 1 - half));
    windows.push_back({center - half, std::min(tiles, center + half + 1)});
  }
  return windows;
}

// The share of pairs of tokens of one axis whose tiles see each other.
double AxisDensity(int64_t extent, int64_t tile, int64_t window) {
  const int64_t tiles = CeilDiv(extent, tile);
  const auto tokens = [&](Range range) {
    return std::min(extent, range.end * tile) - range.begin * tile;
  };
  int64_t pairs = 0;
  const std::vector<Range> windows = WindowsOf(tiles, window);
  for (int64_t t = 0; t < tiles; ++t)
    pairs += tokens({t, t + 1}) * tokens(windows[static_cast<size_t>(t)]);
  return static_cast<double>(pairs) / static_cast<double>(extent * extent);
}

using TileIndex = std::array<int64_t, 3>;

// [blocks]: the tiles that have tokens in a block, each once.
std::vector<std::vector<TileIndex>> TilesOfBlocks(const StaticMaskPlace& place,
                                                  const std::array<int64_t, 3>& tile) {
  TokenGrid natural = place.grid;
  natural.home = TokenOrder::kFHW;
  const std::vector<int32_t> at =
      TokenAtPosition(natural, TokenOrder::Tiles(tile[0], tile[1], tile[2]));
  std::vector<std::vector<TileIndex>> tiles(static_cast<size_t>(BlocksOf(place).QBlocks()));
  for (int64_t p = natural.text_before; p < natural.Tokens() - natural.text_after; ++p) {
    const int64_t cell = at[static_cast<size_t>(p)] - natural.text_before;
    const TileIndex index = {cell / (natural.height * natural.width) / tile[0],
                             cell / natural.width % natural.height / tile[1],
                             cell % natural.width / tile[2]};
    auto& of_block = tiles[static_cast<size_t>(p / place.block_tokens)];
    if (of_block.empty() || of_block.back() != index) of_block.push_back(index);
  }
  return tiles;
}

}  // namespace

LaneMasks RadialMasks(const StaticMaskPlace& place, const RadialOptions& options) {
  if (!(options.decay > 0 && options.decay <= 1e6))
    throw InputError("[sparsity] radial decay {}: must be above 0", options.decay);
  BlockMask one({1, 1}, BlocksOf(place));
  KeepText(place.grid, one);
  const RadialRule rule(place, options);
  std::vector<std::vector<Stretch>> stretches;
  for (int64_t block = 0; block < one.QBlocks(); ++block)
    stretches.push_back(StretchesOf(place.grid, one.grid().QBlockTokens(block)));
  for (int64_t q = 0; q < one.QBlocks(); ++q) {
    for (int64_t kv = 0; kv < one.KvBlocks(); ++kv) {
      if (q == kv ||
          rule.Keeps(stretches[static_cast<size_t>(q)], stretches[static_cast<size_t>(kv)]))
        one.Set(0, q, kv);
    }
  }
  return ForAllLanes(place, one, TokenOrder::kFHW);
}

LaneMasks SlidingTileMasks(const StaticMaskPlace& place, const SlidingTileOptions& options) {
  const TokenGrid& grid = place.grid;
  const TokenOrder order =
      TokenOrder::Tiles(options.tile[0], options.tile[1], options.tile[2]);  // checks them
  const std::array<int64_t, 3> extents = {grid.frames, grid.height, grid.width};
  std::array<std::vector<Range>, 3> windows;
  for (size_t axis = 0; axis < 3; ++axis) {
    if (options.window[axis] < 1)
      throw InputError("[sparsity] a window of {} tiles: must be at least 1", options.window[axis]);
    windows[axis] = WindowsOf(CeilDiv(extents[axis], options.tile[axis]), options.window[axis]);
  }
  const auto tiles = TilesOfBlocks(place, options.tile);
  const auto sees = [&](const TileIndex& q, const TileIndex& k) {
    for (size_t axis = 0; axis < 3; ++axis)
      if (!windows[axis][static_cast<size_t>(q[axis])].Contains(k[axis])) return false;
    return true;
  };
  BlockMask one({1, 1}, BlocksOf(place));
  KeepText(grid, one);
  for (size_t q = 0; q < tiles.size(); ++q) {
    for (size_t kv = 0; kv < tiles.size(); ++kv) {
      const bool any = std::ranges::any_of(tiles[q], [&](const TileIndex& from) {
        return std::ranges::any_of(tiles[kv], [&](const TileIndex& to) { return sees(from, to); });
      });
      if (any) one.Set(0, static_cast<int64_t>(q), static_cast<int64_t>(kv));
    }
  }
  return ForAllLanes(place, one, order);
}

std::vector<SlidingTilesAt> SlidingTilesByDensity(const TokenGrid& grid, double density) {
  if (!(density > 0 && density <= 1))
    throw InputError("[sparsity] density {}: must be above 0 and at most 1", density);
  std::vector<SlidingTilesAt> all;
  SlidingTileOptions next;
  // Odd windows up to the first that sees everything.
  const auto largest = [](int64_t extent, int64_t tile) { return CeilDiv(extent, tile) | 1; };
  for (int64_t f = 1; f <= largest(grid.frames, next.tile[0]); f += 2) {
    for (int64_t h = 1; h <= largest(grid.height, next.tile[1]); h += 2) {
      for (int64_t w = 1; w <= largest(grid.width, next.tile[2]); w += 2) {
        next.window = {f, h, w};
        all.push_back({next, AxisDensity(grid.frames, next.tile[0], f) *
                                 AxisDensity(grid.height, next.tile[1], h) *
                                 AxisDensity(grid.width, next.tile[2], w)});
      }
    }
  }
  std::stable_sort(all.begin(), all.end(), [&](const SlidingTilesAt& a, const SlidingTilesAt& b) {
    const double off_a = std::abs(a.density - density), off_b = std::abs(b.density - density);
    return off_a != off_b ? off_a < off_b : a.density < b.density;
  });
  return all;
}

SlidingTileOptions SlidingTilesOfDensity(const TokenGrid& grid, double density) {
  return SlidingTilesByDensity(grid, density).front().tiles;
}

LaneMasks WindowMasks(const StaticMaskPlace& place, HeadMode mode, double density) {
  if (!(density > 0 && density <= 1))
    throw InputError("[sparsity] density {}: must be above 0 and at most 1", density);
  const HeadPattern band = BandOfDensity(mode, density, place.grid, place.block_tokens);
  const std::vector<HeadPattern> heads(static_cast<size_t>(place.lanes.heads), band);
  return MakePatternMasks(heads, place.lanes.batch, place.grid, place.block_tokens);
}

}  // namespace equitile

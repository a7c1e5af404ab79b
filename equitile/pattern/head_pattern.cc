#include "equitile/pattern/head_pattern.h"

#include <algorithm>
#include <cmath>

#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"full",           "skip",    "diagonal",
                                                    "multi-diagonal", "stripes", "mean"};

bool IsBand(HeadMode mode) {
  return mode == HeadMode::kDiagonal || mode == HeadMode::kMultiDiagonal;
}

// Tokens in one unit of a band's size.
int64_t UnitTokens(HeadMode mode, const TokenGrid& grid) {
  return mode == HeadMode::kDiagonal ? grid.height * grid.width : grid.frames;
}

int64_t HalfWidthTokens(const HeadPattern& head, const TokenGrid& grid) {
  const double tokens = head.size * static_cast<double>(UnitTokens(head.mode, grid));
  return std::llround(std::min(tokens, static_cast<double>(grid.Tokens())));
}

// The one lane of a mask over the grid's tokens that a pattern fills.
class LaneWriter {
 public:
  LaneWriter(const TokenGrid& grid, int64_t lane, BlockMask& mask)
      : grid_(grid),
        video_{grid.text_before, grid.Tokens() - grid.text_after},
        lane_(lane),
        mask_(mask) {}

  void Write(const HeadPattern& head) {
    if (head.mode == HeadMode::kSkip) return;
    const int64_t half = IsBand(head.mode) ? HalfWidthTokens(head, grid_) : 0;
    for (int64_t q = 0; q < mask_.QBlocks(); ++q) {
      const Range queries = mask_.grid().QBlockTokens(q);
      const bool has_text = queries.begin < video_.begin || queries.end > video_.end;
      if (has_text || head.mode == HeadMode::kFull) {
        mask_.SetRange(lane_, q, {0, mask_.KvBlocks()});
        continue;
      }
      Keep(q, {0, video_.begin});
      Keep(q, {video_.end, grid_.Tokens()});
      if (IsBand(head.mode)) {
        Keep(q, {std::max(video_.begin, queries.begin - half),
                 std::min(video_.end, queries.end + half)});
      }
      for (const Range& column : head.columns)
        Keep(q, {video_.begin + column.begin, video_.begin + column.end});
    }
  }

 private:
  // The blocks that hold any of these keys.
  void Keep(int64_t q_block, Range keys) {
    const int64_t block = mask_.grid().block_tokens;
    if (!keys.empty())
      mask_.SetRange(lane_, q_block, {keys.begin / block, CeilDiv(keys.end, block)});
  }

  const TokenGrid& grid_;
  const Range video_;  // positions
  const int64_t lane_;
  BlockMask& mask_;
};

BlockGrid BlocksOf(const TokenGrid& grid, int64_t block_tokens) {
  return {.q_tokens = grid.Tokens(), .kv_tokens = grid.Tokens(), .block_tokens = block_tokens};
}

}  // namespace

std::string_view HeadModeName(HeadMode mode) { return kNames[static_cast<size_t>(mode)]; }

HeadMode ParseHeadMode(std::string_view name) {
  for (HeadMode mode : kHeadModes) {
    if (HeadModeName(mode) == name) return mode;
  }
  throw InputError(
      "[pattern] unknown mode '{}'; use full, skip, diagonal, multi-diagonal, stripes or mean",
      name);
}

void CheckHeadPattern(const HeadPattern& head, const TokenGrid& grid) {
  if (IsBand(head.mode) && !(head.size >= 0 && std::isfinite(head.size))) {
    throw InputError("[pattern] a {} band of size {}: must be at least 0", HeadModeName(head.mode),
                     head.size);
  }
  if (head.mode != HeadMode::kStripes) return;
  if (head.columns.empty())
    throw InputError("[pattern] stripes without columns; skip keeps nothing");
  int64_t begin = 0;
  for (const Range& column : head.columns) {
    if (column.begin < begin || column.empty() || column.end > grid.VideoTokens()) {
      throw InputError(
          "[pattern] stripe [{}, {}): stripes ascend, do not touch and lie within the {} video "
          "tokens",
          column.begin, column.end, grid.VideoTokens());
    }
    begin = column.end + 1;
  }
}

LaneMasks MakePatternMasks(std::span<const HeadPattern> heads, int64_t batch, const TokenGrid& grid,
                           int64_t block_tokens) {
  const Lanes lanes = {.batch = batch, .heads = std::ssize(heads)};
  LaneMasks::Parts parts{.blocks = BlockMask(lanes, BlocksOf(grid, block_tokens)),
                         .token_grid = grid,
                         .orders = {},
                         .tails = {}};
  for (int64_t lane = 0; lane < lanes.Count(); ++lane) {
    const HeadPattern& head = heads[static_cast<size_t>(lanes.HeadOf(lane))];
    CheckHeadPattern(head, grid);
    LaneWriter(grid, lane, parts.blocks).Write(head);
    parts.orders.push_back(head.mode == HeadMode::kDiagonal        ? TokenOrder::kFHW
                           : head.mode == HeadMode::kMultiDiagonal ? TokenOrder::kHWF
                                                                   : grid.home);
    parts.tails.push_back(head.mode == HeadMode::kMean ? Tail::kMean : Tail::kNone);
  }
  return LaneMasks(std::move(parts));
}

double PatternDensity(const HeadPattern& head, const TokenGrid& grid, int64_t block_tokens) {
  return MakePatternMasks({&head, 1}, 1, grid, block_tokens).blocks().Density();
}

HeadPattern BandOfDensity(HeadMode mode, double density, const TokenGrid& grid,
                          int64_t block_tokens) {
  EQ_CHECK(IsBand(mode));
  const auto band = [&](int64_t half_blocks) -> HeadPattern {
    const auto tokens = static_cast<double>(half_blocks * block_tokens);
    return {
        .mode = mode, .size = tokens / static_cast<double>(UnitTokens(mode, grid)), .columns = {}};
  };
  const auto density_of = [&](int64_t half_blocks) {
    return PatternDensity(band(half_blocks), grid, block_tokens);
  };
  int64_t low = 0, high = CeilDiv(grid.Tokens(), block_tokens);  // density(low) <= wanted, unless 0
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (density_of(middle) <= density ? low : high) = middle;
  }
  return band(density - density_of(low) <= density_of(high) - density ? low : high);
}

HeadPattern OnGrid(const HeadPattern& head, const TokenGrid& from, const TokenGrid& to) {
  HeadPattern result = head;
  result.columns.clear();
  for (const Range& column : head.columns) {
    const Range scaled = {column.begin * to.VideoTokens() / from.VideoTokens(),
                          CeilDiv(column.end * to.VideoTokens(), from.VideoTokens())};
    if (!result.columns.empty() && result.columns.back().end >= scaled.begin) {
      result.columns.back().end = std::max(result.columns.back().end, scaled.end);
    } else {
      result.columns.push_back(scaled);
    }
  }
  return result;
}

}  // namespace equitile

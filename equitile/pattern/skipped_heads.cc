#include "equitile/pattern/skipped_heads.h"

#include <algorithm>

#include "equitile/base/error.h"

namespace equitile {
namespace {

bool KeepsNothing(const LaneMasks& masks, int64_t lane) {
  if (masks.TailOf(lane) != Tail::kNone) return false;
  const BlockMask& blocks = masks.blocks();
  for (int64_t q = 0; q < blocks.QBlocks(); ++q) {
    if (std::ranges::any_of(blocks.Row(lane, q), [](uint64_t word) { return word != 0; }))
      return false;
  }
  return true;
}

}  // namespace

std::vector<int64_t> SkippedHeads(const LaneMasks& masks) {
  const Lanes& lanes = masks.blocks().lanes();
  std::vector<int64_t> heads;
  for (int64_t head = 0; head < lanes.heads; ++head) {
    bool is_skipped = lanes.batch > 0;
    for (int64_t item = 0; item < lanes.batch && is_skipped; ++item)
      is_skipped = KeepsNothing(masks, lanes.Lane(item, head));
    if (is_skipped) heads.push_back(head);
  }
  return heads;
}

std::vector<int64_t> HeadsLeft(int64_t heads, std::span<const int64_t> skipped) {
  std::vector<int64_t> left;
  for (int64_t head = 0; head < heads; ++head) {
    if (!std::ranges::binary_search(skipped, head)) left.push_back(head);
  }
  EQ_CHECK(std::ssize(left) + std::ssize(skipped) == heads);
  return left;
}

LaneMasks WithoutHeads(const LaneMasks& masks, std::span<const int64_t> heads) {
  if (heads.empty()) return masks;
  const BlockMask& all = masks.blocks();
  const std::vector<int64_t> left = HeadsLeft(all.lanes().heads, heads);
  const Lanes lanes = {.batch = all.lanes().batch, .heads = std::ssize(left)};
  LaneMasks::Parts parts{.blocks = BlockMask(lanes, all.grid()),
                         .token_grid = masks.token_grid(),
                         .orders = {},
                         .tails = {}};
  for (int64_t lane = 0; lane < lanes.Count(); ++lane) {
    const int64_t from =
        all.lanes().Lane(lanes.BatchOf(lane), left[static_cast<size_t>(lanes.HeadOf(lane))]);
    for (int64_t q = 0; q < all.QBlocks(); ++q)
      std::ranges::copy(all.Row(from, q), parts.blocks.MutableRow(lane, q).begin());
    if (!masks.orders().empty()) parts.orders.push_back(masks.orders()[static_cast<size_t>(from)]);
    if (!masks.tails().empty()) parts.tails.push_back(masks.TailOf(from));
  }
  return LaneMasks(std::move(parts));
}

}  // namespace equitile

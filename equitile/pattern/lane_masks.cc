#include "equitile/pattern/lane_masks.h"

#include <algorithm>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"
#include "equitile/pattern/mask_hash.h"

namespace equitile {
namespace {

template <typename T>
void CheckCount(const std::vector<T>& values, const char* what, int64_t lanes) {
  if (values.empty() || std::ssize(values) == lanes) return;
  throw InputError("[pattern] {} {} for {} lanes", values.size(), what, lanes);
}

template <typename T>
void ClearWhereAll(std::vector<T>& values, const T& value) {
  if (std::all_of(values.begin(), values.end(), [&](const T& v) { return v == value; }))
    values.clear();
}

uint64_t HashOf(const LaneMasks::Parts& parts) {
  const uint64_t blocks = HashMask(parts.blocks);
  if (parts.orders.empty() && parts.tails.empty()) return blocks;
  Hasher hash;
  hash.Add(blocks);
  const TokenGrid& grid = parts.token_grid;
  for (int64_t extent : {grid.frames, grid.height, grid.width, grid.text_before, grid.text_after}) {
    hash.Add(extent);
  }
  hash.Add(grid.home);
  hash.Add(std::span(parts.orders)).Add(std::span(parts.tails));
  return hash.Digest();
}

}  // namespace

LaneMasks::LaneMasks(BlockMask blocks) : LaneMasks({std::move(blocks), {}, {}, {}}) {}

LaneMasks::LaneMasks(Parts parts) {
  CheckCount(parts.orders, "token orders", parts.blocks.LaneCount());
  CheckCount(parts.tails, "tails", parts.blocks.LaneCount());
  ClearWhereAll(parts.orders, parts.token_grid.home);
  ClearWhereAll(parts.tails, Tail::kNone);
  if (parts.orders.empty()) parts.token_grid = {};
  const uint64_t hash = HashOf(parts);
  content_ = std::make_shared<const Content>(Content{std::move(parts), hash});
}

LaneMasks LaneMasks::WithBlocks(BlockMask blocks) const {
  EQ_CHECK(blocks.lanes() == this->blocks().lanes() && blocks.grid() == this->blocks().grid());
  return LaneMasks(Parts{.blocks = std::move(blocks),
                         .token_grid = token_grid(),
                         .orders = orders(),
                         .tails = tails()});
}

int64_t LaneMasks::Bytes() const {
  return static_cast<int64_t>(blocks().Words().size_bytes() + orders().size() * sizeof(TokenOrder) +
                              tails().size());
}

bool operator==(const LaneMasks& a, const LaneMasks& b) {
  return a.content_ == b.content_ ||
         (a.hash() == b.hash() && a.blocks() == b.blocks() && a.token_grid() == b.token_grid() &&
          a.orders() == b.orders() && a.tails() == b.tails());
}

}  // namespace equitile

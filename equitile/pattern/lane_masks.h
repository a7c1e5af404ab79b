// What every lane of a layer attends to: the kept blocks, the order in which the lane's tokens line
// up into blocks, and what becomes of the blocks that are not kept. One value, because bits without
// their order mean something else; one hash, so that nobody can compare half of it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "equitile/pattern/block_mask.h"
#include "equitile/pattern/tail.h"
#include "equitile/pattern/token_grid.h"

namespace equitile {

// Immutable; copies share one content.
class LaneMasks {
 public:
  struct Parts {
    BlockMask blocks;
    TokenGrid token_grid;            // where a lane is not in home order
    std::vector<TokenOrder> orders;  // [lanes], or empty: every lane in home order
    std::vector<Tail> tails;         // [lanes], or empty: none
  };

  LaneMasks() : LaneMasks(Parts{}) {}
  LaneMasks(BlockMask blocks);  // in home order, without tails
  // Throws InputError where orders or tails are not one per lane. Orders that are all the home's,
  // and tails that are all none, are left out.
  explicit LaneMasks(Parts parts);

  const BlockMask& blocks() const { return content_->parts.blocks; }
  const TokenGrid& token_grid() const { return content_->parts.token_grid; }
  const std::vector<TokenOrder>& orders() const { return content_->parts.orders; }
  const std::vector<Tail>& tails() const { return content_->parts.tails; }
  Tail TailOf(int64_t lane) const {
    return tails().empty() ? Tail::kNone : tails()[static_cast<size_t>(lane)];
  }
  uint64_t hash() const { return content_->hash; }  // of everything in it

  // The same with other blocks of the same lanes and grid.
  LaneMasks WithBlocks(BlockMask blocks) const;

  int64_t Bytes() const;  // of the content

  friend bool operator==(const LaneMasks& a, const LaneMasks& b);

 private:
  struct Content {
    Parts parts;
    uint64_t hash = 0;
  };
  std::shared_ptr<const Content> content_;
};

}  // namespace equitile

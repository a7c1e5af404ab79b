#include "equitile/pattern/block_grid.h"

#include "equitile/base/error.h"

namespace equitile {

void CheckBlockGrid(const BlockGrid& grid) {
  if (grid.block_tokens < kMinBlockTokens || grid.block_tokens > kMaxBlockTokens || grid.block_tokens % kStripTokens != 0) {
    throw InputError("[pattern] block {}: must be a multiple of {} from {} to {}", grid.block_tokens, kStripTokens,
                     kMinBlockTokens, kMaxBlockTokens);
  }
  if (grid.q_tokens <= 0 || grid.kv_tokens <= 0) {
    throw InputError("[pattern] {} query and {} key tokens: both must be positive", grid.q_tokens, grid.kv_tokens);
  }
}

}  // namespace equitile

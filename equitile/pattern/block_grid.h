// How the tokens of a lane are cut into blocks. Any token count; the last block may be ragged.
#pragma once

#include <cstdint>

#include "equitile/base/range.h"

namespace equitile {

// A lane is one (batch item, head), numbered batch-slowest.
struct Lanes {
  int64_t batch = 1;
  int64_t heads = 1;

  int64_t Count() const { return batch * heads; }
  int64_t Lane(int64_t batch_item, int64_t head) const { return batch_item * heads + head; }
  int64_t BatchOf(int64_t lane) const { return lane / heads; }
  int64_t HeadOf(int64_t lane) const { return lane % heads; }
  friend bool operator==(const Lanes&, const Lanes&) = default;
};

// The unit in which tokens are packed and travel; block sizes are multiples of it.
inline constexpr int64_t kStripTokens = 16;
inline constexpr int64_t kMinBlockTokens = 16;
inline constexpr int64_t kMaxBlockTokens = 256;

struct BlockGrid {
  int64_t q_tokens = 0;
  int64_t kv_tokens = 0;
  int64_t block_tokens = 64;

  int64_t QBlocks() const { return CeilDiv(q_tokens, block_tokens); }
  int64_t KvBlocks() const { return CeilDiv(kv_tokens, block_tokens); }
  Range QBlockTokens(int64_t q_block) const { return Tokens(q_block, q_tokens); }
  Range KvBlockTokens(int64_t kv_block) const { return Tokens(kv_block, kv_tokens); }
  friend bool operator==(const BlockGrid&, const BlockGrid&) = default;

 private:
  Range Tokens(int64_t block, int64_t tokens) const {
    const int64_t begin = block * block_tokens;
    const int64_t end = begin + block_tokens;
    return {begin, end < tokens ? end : tokens};
  }
};

// Throws InputError unless 16 <= block_tokens <= 256 and a multiple of 16, and both token counts are positive.
void CheckBlockGrid(const BlockGrid& grid);

}  // namespace equitile

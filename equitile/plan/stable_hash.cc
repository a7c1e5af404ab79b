#include "equitile/plan/stable_hash.h"

#include <array>

namespace equitile {

uint64_t HashMask(const BlockMask& mask) {
  const std::span<const uint64_t> words = mask.Words();
  std::array<StableHash, 4> chains;
  size_t i = 0;
  for (; i + 4 <= words.size(); i += 4) {
    for (size_t c = 0; c < 4; ++c) chains[c].Add(words[i + c]);
  }
  for (; i < words.size(); ++i) chains[0].Add(words[i]);

  StableHash hash;
  hash.Add(mask.lanes().batch);
  hash.Add(mask.lanes().heads);
  hash.Add(mask.grid().q_tokens);
  hash.Add(mask.grid().kv_tokens);
  hash.Add(mask.grid().block_tokens);
  for (const StableHash& chain : chains) hash.Add(chain.value());
  return hash.value();
}

}  // namespace equitile

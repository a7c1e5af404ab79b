#include "equitile/pattern/mask_hash.h"

#include <array>

#include "equitile/base/hash.h"

namespace equitile {

uint64_t HashMask(const BlockMask& mask) {
  // Four independent chains of one multiply per word: masks have millions of words, and one chain
  // of the full mix would wait for itself four times as long (bench_plan, HashMask).
  std::array<uint64_t, 4> chains = {1, 2, 3, 4};
  auto add = [](uint64_t& chain, uint64_t word) {
    chain = (chain ^ word) * 0x9e3779b97f4a7c15;
    chain ^= chain >> 32;
  };
  const std::span<const uint64_t> words = mask.Words();
  size_t i = 0;
  for (; i + 4 <= words.size(); i += 4) {
    for (size_t c = 0; c < 4; ++c) add(chains[c], words[i + c]);
  }
  for (; i < words.size(); ++i) add(chains[i % 4], words[i]);

  Hasher hash;
  hash.Add(mask.lanes().batch).Add(mask.lanes().heads);
  hash.Add(mask.grid().q_tokens).Add(mask.grid().kv_tokens).Add(mask.grid().block_tokens);
  for (uint64_t chain : chains) hash.Add(chain);
  return hash.Digest();
}

}  // namespace equitile

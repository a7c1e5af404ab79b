// What a thread of the attention kernel reads after the chunk that it computes. The kernel touches
// it while it multiplies, a few cache lines at a time, so that packing and short rows do not wait
// for memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "equitile/base/range.h"
#include "equitile/kernel/rows/strips.h"
#include "equitile/pattern/block_grid.h"

namespace equitile {

// A row of attention is computed in chunks of this many kv strips.
inline constexpr int64_t kChunkStrips = 8;

struct NextReads {
  // Packed strips of keys and values, at most a chunk's.
  size_t strips = 0;
  const std::byte* k[kChunkStrips];
  const std::byte* v[kChunkStrips];
  // Tokens that are still to be packed, queries, output.
  std::vector<const void*> rows;
  int64_t row_bytes = 0;

  void Clear() {
    strips = 0;
    rows.clear();
    row_bytes = 0;
  }
  void AddStrips(const std::byte* k_strip, const std::byte* v_strip) {
    k[strips] = k_strip;
    v[strips++] = v_strip;
  }
  // Rows of a lane's tokens at these positions of its order; none unless the source is a view.
  void AddTokens(const TokenSource& source, Lanes lanes, int64_t lane, const int32_t* order,
                 Range positions);
};

}  // namespace equitile

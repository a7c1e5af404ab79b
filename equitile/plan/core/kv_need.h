// Which K/V blocks a rank really needs, by the mask: shared by lowering and by the byte counts, so
// that both leave out the same ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/plan/core/plan.h"
#include "equitile/plan/core/program.h"

namespace equitile {

// The kv blocks of every ring rank of a group as masked words: [R].
std::vector<KvSet> RingKvSets(const Plan& plan, const RingGroup& ring);
// All kv blocks.
KvSet FullKvSet(int64_t kv_blocks);

// Union of the rows [rows) of a lane, added to need[words_per_row].
void AddNeed(const BlockMask& mask, int64_t lane, Range rows, std::span<uint64_t> need);

// Visits maximal ranges of set bits, ascending, as Range.
template <typename Visit>
void ForEachBitRange(std::span<const uint64_t> words, Visit&& visit) {
  Range open{-1, -1};
  for (size_t w = 0; w < words.size(); ++w) {
    uint64_t bits = words[w];
    const int64_t base = static_cast<int64_t>(w) * 64;
    while (bits != 0) {
      const int64_t begin = base + std::countr_zero(bits);
      const uint64_t from_begin = bits >> (begin - base);
      const int64_t length = std::countr_one(from_begin);
      if (open.end == begin) {
        open.end += length;
      } else {
        if (open.begin >= 0) visit(open);
        open = {begin, begin + length};
      }
      const int64_t used = begin - base + length;
      bits = used >= 64 ? 0 : bits >> used << used;
    }
  }
  if (open.begin >= 0) visit(open);
}

// Marks a K/V block that no rank of the ring needs.
inline constexpr int32_t kNeverNeeded = -1;

// For one lane of a ring plan: [kv_blocks] the last stage in which some ring rank needs the block,
// or kNeverNeeded; without needed_kv_only always R-1. In that stage it is at ring rank (kv_owner -
// stage) mod R; before, it travels there from its owner.
class RingNeed {
 public:
  RingNeed(const Plan& plan, const BlockMask& mask, const RingGroup& ring);
  const std::vector<int32_t>& LastStages(int64_t lane);  // valid until the next call

 private:
  const Plan& plan_;
  const BlockMask& mask_;
  const RingGroup& ring_;
  std::vector<KvSet> sets_;           // [R]
  std::vector<int32_t> ring_rank_;    // [ranks] index in the ring
  std::vector<uint64_t> need_;        // [R][words_per_row]
  std::vector<int32_t> last_stages_;  // [kv_blocks]
};

}  // namespace equitile

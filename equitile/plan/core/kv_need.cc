#include "equitile/plan/core/kv_need.h"

#include <algorithm>
#include <bit>

namespace equitile {

std::vector<KvSet> RingKvSets(const Plan& plan, const RingGroup& ring) {
  const std::vector<int32_t>& kv_owner = plan.KvOwner(ring);
  std::vector<KvSet> sets(ring.ranks.size());
  for (size_t block = 0; block < kv_owner.size(); ++block) {
    KvSet& set = sets[static_cast<size_t>(kv_owner[block])];
    const int64_t word = static_cast<int64_t>(block / 64);
    if (set.empty() || set.back().word != word) set.push_back({.word = word, .bits = 0});
    set.back().bits |= uint64_t{1} << (block % 64);
  }
  return sets;
}

KvSet FullKvSet(int64_t kv_blocks) {
  KvSet set;
  for (int64_t base = 0; base < kv_blocks; base += 64) {
    const int64_t bits = std::min<int64_t>(64, kv_blocks - base);
    set.push_back({.word = base / 64, .bits = ~uint64_t{0} >> (64 - bits)});
  }
  return set;
}

void AddNeed(const BlockMask& mask, int64_t lane, Range rows, std::span<uint64_t> need) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const uint64_t* words = mask.Row(lane, row).data();
    for (size_t w = 0; w < need.size(); ++w) need[w] |= words[w];
  }
}

RingNeed::RingNeed(const Plan& plan, const BlockMask& mask, const RingGroup& ring)
    : plan_(plan), mask_(mask), ring_(ring) {
  const int32_t ring_size = static_cast<int32_t>(ring.ranks.size());
  last_stages_.assign(plan.KvOwner(ring).size(), ring_size - 1);
  if (!plan.needed_kv_only()) return;
  ring_rank_.resize(static_cast<size_t>(plan.ranks()));
  sets_ = RingKvSets(plan, ring);
  need_.resize(ring.ranks.size() * static_cast<size_t>(mask.WordsPerRow()));
  for (int32_t r = 0; r < ring_size; ++r) {
    ring_rank_[static_cast<size_t>(ring.ranks[static_cast<size_t>(r)])] = r;
  }
}

const std::vector<int32_t>& RingNeed::LastStages(int64_t lane) {
  if (!plan_.needed_kv_only()) return last_stages_;
  const size_t words = static_cast<size_t>(mask_.WordsPerRow());
  const int32_t ring_size = static_cast<int32_t>(ring_.ranks.size());
  std::fill(need_.begin(), need_.end(), 0);
  int64_t begin = 0;
  for (const RowRun& run : plan_.RunsOf(lane)) {
    const size_t r = static_cast<size_t>(ring_rank_[static_cast<size_t>(run.rank)]);
    AddNeed(mask_, lane, {begin, run.end}, std::span(need_).subspan(r * words, words));
    begin = run.end;
  }
  std::fill(last_stages_.begin(), last_stages_.end(), kNeverNeeded);
  for (int32_t chunk = 0; chunk < ring_size; ++chunk) {
    for (const WordBits& part : sets_[static_cast<size_t>(chunk)]) {
      uint64_t open = part.bits;
      for (int32_t stage = ring_size - 1; stage >= 0 && open != 0; --stage) {
        const size_t r = static_cast<size_t>((chunk - stage + ring_size) % ring_size);
        for (uint64_t hit = open & need_[r * words + static_cast<size_t>(part.word)]; hit != 0;
             hit &= hit - 1) {
          last_stages_[static_cast<size_t>(part.word * 64 + std::countr_zero(hit))] = stage;
        }
        open &= ~need_[r * words + static_cast<size_t>(part.word)];
      }
    }
  }
  return last_stages_;
}

}  // namespace equitile

#include "equitile/kernel/attention_group.h"

#include <cstring>

namespace equitile {
namespace {

// Below every finite score in units of log2, yet finite: the difference of two running maxima is
// never inf - inf.
constexpr float kLowestScore = -1e38f;

// The parts of the memory, in floats where they are floats.
int64_t OutputFloats(const AttentionArgs& args) {
  return GroupStrips(args.head_dim) * OutputStripFloats(args.head_dim);
}
int64_t StateFloats(const AttentionArgs& args) { return GroupStrips(args.head_dim) * kStripTokens; }
int64_t PartsFloats(const AttentionArgs& args) {
  if (args.masses == nullptr) return 0;
  int64_t longest = 0;
  for (int64_t row = 0; row < args.rows->Count(); ++row)
    longest = std::max<int64_t>(longest, std::ssize(args.rows->KvBlocks(row)));
  return StateFloats(args) * (2 * ChunksOf(longest, args.grid) + longest);
}

// Strips i, i + 1, ... that follow each other.
int64_t RunOf(const QueryGroup& group, int64_t i) {
  int64_t run = 1;
  while (i + run < group.size && group.strip[i + run] == group.strip[i] + run) ++run;
  return run;
}

}  // namespace

GroupMemory::GroupMemory(std::byte* base, const AttentionArgs& args)
    : q(base),
      o(reinterpret_cast<float*>(q + GroupStrips(args.head_dim) * StripBytes(args.head_dim))),
      scores(o + OutputFloats(args)),
      rows(scores + 2 * kChunkFloats),
      maximum(rows + kStripTokens * args.head_dim),
      sum(maximum + StateFloats(args)),
      parts(sum + StateFloats(args)) {}

int64_t GroupMemory::Bytes(const AttentionArgs& args) {
  const int64_t floats = OutputFloats(args) + 2 * kChunkFloats + kStripTokens * args.head_dim +
                         2 * StateFloats(args) + PartsFloats(args);
  return GroupStrips(args.head_dim) * StripBytes(args.head_dim) +
         floats * static_cast<int64_t>(sizeof(float));
}

void BeginGroup(QueryGroup& group) {
  const AttentionArgs& args = group.args;
  const int64_t strip_bytes = StripBytes(args.head_dim);
  std::byte* const q = group.memory.q;
  for (int64_t s = 0, run; s < group.size; s += run) {
    if (args.q.IsStrips()) {
      run = 1;
      std::memcpy(q + s * strip_bytes, args.q.strips.At(group.lane, group.strip[s]),
                  static_cast<size_t>(strip_bytes));
      continue;
    }
    run = RunOf(group, s);
    PackStrips({.layout = StripLayout::kQuery,
                .source = &args.q,
                .lanes = args.lanes,
                .lane = group.lane,
                .tokens = args.grid.q_tokens,
                .head_dim = args.head_dim,
                .token_at_position = args.QOrder(group.lane),
                .strips = {group.strip[s], group.strip[s] + run}},
               q + s * strip_bytes);
  }
  std::fill_n(group.memory.maximum, group.size * kStripTokens, kLowestScore);
  std::fill_n(group.memory.sum, group.size * kStripTokens, 0.0f);
}

}  // namespace equitile

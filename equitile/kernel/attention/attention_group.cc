#include "equitile/kernel/attention/attention_group.h"

#include <cstring>

namespace equitile {
namespace {

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

int64_t QueryBytes(const AttentionArgs& args) {
  return GroupStrips(args.head_dim) * GroupQueryBytes(args.head_dim, args.compute);
}
int64_t QueryFloats(const AttentionArgs& args) {
  return args.compute == Compute::kF32 ? 0 : OutputStripFloats(args.head_dim);
}
int64_t KeyFloats(const AttentionArgs& args) {
  return args.compute == Compute::kF32 ? 0 : 6 * kChunkStrips * kStripTokens;
}
int64_t WideBytes(const AttentionArgs& args) {
  return args.compute == Compute::kInt8 ? 2 * kChunkStrips * WideStripPitch(args.head_dim) : 0;
}

// Strips i, i + 1, ... that follow each other.
int64_t RunOf(const QueryGroup& group, int64_t i) {
  int64_t run = 1;
  while (i + run < group.size && group.strip[i + run] == group.strip[i] + run) ++run;
  return run;
}

// Strips s, s + 1, ... of the group.
void ReadQueries(const QueryGroup& group, int64_t s, int64_t count) {
  const AttentionArgs& args = group.args;
  const bool bytes = args.compute == Compute::kInt8;
  const int64_t pitch = GroupQueryBytes(args.head_dim, args.compute);
  std::byte* const to = group.memory.q + s * pitch;
  // Bytes are packed aside: where they are read they are wider.
  std::byte* const packed = bytes ? reinterpret_cast<std::byte*>(group.memory.q_floats) : to;
  const std::byte* from = packed;
  if (args.q.IsStrips()) {
    from = args.q.strips.At(group.lane, group.strip[s]);
  } else {
    PackStrips({.layout = StripLayout::kQuery,
                .compute = args.compute,
                .source = &args.q,
                .lanes = args.lanes,
                .lane = group.lane,
                .tokens = args.grid.q_tokens,
                .head_dim = args.head_dim,
                .token_at_position = args.QOrder(group.lane),
                .strips = {group.strip[s], group.strip[s] + count},
                .pitch = pitch},
               packed);
  }
  if (bytes) {
    PlaceByteQuery(from, args.head_dim, to);
  } else if (from != to) {
    std::memcpy(to, from, static_cast<size_t>(pitch));
  }
}

}  // namespace

GroupMemory::GroupMemory(std::byte* base, const AttentionArgs& args)
    : q(base),
      o(reinterpret_cast<float*>(q + QueryBytes(args))),
      scores(o + OutputFloats(args)),
      rows(scores + 2 * kChunkFloats),
      maximum(rows + kStripTokens * args.head_dim),
      sum(maximum + StateFloats(args)),
      parts(sum + StateFloats(args)),
      q_floats(parts + PartsFloats(args)),
      keys(q_floats + QueryFloats(args)),
      wide(reinterpret_cast<std::byte*>(keys + KeyFloats(args))) {}

int64_t GroupMemory::Bytes(const AttentionArgs& args) {
  const int64_t floats = OutputFloats(args) + 2 * kChunkFloats + kStripTokens * args.head_dim +
                         2 * StateFloats(args) + PartsFloats(args) + QueryFloats(args) +
                         KeyFloats(args);
  return QueryBytes(args) + floats * static_cast<int64_t>(sizeof(float)) + WideBytes(args);
}

void BeginGroup(QueryGroup& group) {
  for (int64_t s = 0, run; s < group.size; s += run) {
    run = group.args.q.IsStrips() || group.args.compute == Compute::kInt8 ? 1 : RunOf(group, s);
    ReadQueries(group, s, run);
  }
  std::fill_n(group.memory.maximum, group.size * kStripTokens, kLowestScore);
  std::fill_n(group.memory.sum, group.size * kStripTokens, 0.0f);
}

}  // namespace equitile

// Query strips that walk their keys and values together, chunk by chunk: what the SIMD part of the
// attention kernel works on. Internal to this part; attention_call.cc walks rows with it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "equitile/kernel/attention/attention.h"
#include "equitile/kernel/attention/next_reads.h"
#include "equitile/kernel/rows/strips.h"

namespace equitile {

// Query strips that walk a chunk one after the other, so that K and V come from L2 and not from L3:
// as many as keep their Q and O within 192 KiB, beside the 144 KiB of a chunk at head_dim 128.
// Even, since a register tile may hold two. A task with more walks its kv blocks more than once.
constexpr int64_t GroupStrips(int64_t head_dim) {
  return std::clamp<int64_t>(1536 / head_dim / 2 * 2, 2, kMaxBlockTokens / kStripTokens);
}

// An output from this size on is not in cache when somebody reads it, so it is written past the
// cache: reading its lines first, as plain stores do, would take memory bandwidth that short rows
// need.
inline constexpr int64_t kStreamFloats = int64_t{16} << 20;

// Up to kChunkStrips strips of keys and values. Only the last may hold less than 16 tokens: it ends
// the sequence, or the means. Chunks are a function of the row's own kv list, so that its bits
// depend on nothing else.
struct Chunk {
  size_t size = 0;
  size_t tokens = 0;
  int64_t first = 0;  // strips of the row's kept blocks before it
  const std::byte* k[kChunkStrips];
  const std::byte* v[kChunkStrips];
  int64_t position[kChunkStrips];  // of each strip's first token
  const float* log2_count =
      nullptr;  // [tokens] of tokens that each mean stands for; null: no means

  void Add(const std::byte* k_strip, const std::byte* v_strip, int64_t first_token, int64_t count) {
    k[size] = k_strip;
    v[size] = v_strip;
    position[size++] = first_token;
    tokens += static_cast<size_t>(count);
  }
  size_t Count(size_t strip) const { return std::min<size_t>(16, tokens - 16 * strip); }
};

// The chunk's scores for one query strip (8 KiB), the query strip and its output (8 KiB each at
// head_dim 128) share L1.
inline constexpr int64_t kChunkFloats = kChunkStrips * kStripTokens * 16;

// A query strip as a register tile reads it. Bytes become pairs of int16: without an instruction
// for four bytes they are multiplied as such.
constexpr int64_t GroupQueryBytes(int64_t head_dim, Compute compute) {
  if (compute == Compute::kF32) return StripBytes(head_dim);
  return PaddedDim(head_dim, compute) * kStripTokens * 2 + kStripTokens * 4;
}

// The same of key and value strips, with a gap (see StripPitch).
constexpr int64_t WideStripPitch(int64_t head_dim) {
  return PaddedDim(head_dim, Compute::kInt8) * kStripTokens * 2 + 512;
}

// Below every finite score in units of log2, yet finite: the difference of two running maxima is
// never inf - inf. A score of less than this times ln 2 is infinite in these units, and leaves its
// key out as a bias of -inf does.
inline constexpr float kLowestScore = -std::numeric_limits<float>::max();

// Chunks of a row that keeps so many blocks, at most.
constexpr int64_t ChunksOf(int64_t kept, const BlockGrid& grid) {
  return CeilDiv(kept * grid.block_tokens, kChunkStrips * kStripTokens);
}

// The output of a query strip while it is summed, [head_dim][16].
constexpr int64_t OutputStripFloats(int64_t head_dim) { return RoundUp(head_dim, 16) * 16; }

// What a group of query strips has so far, in memory of its thread.
struct GroupMemory {
  GroupMemory(std::byte* base, const AttentionArgs& args);
  static int64_t Bytes(const AttentionArgs& args);

  std::byte* q;    // [group] query strips, GroupQueryBytes each
  float* o;        // [group][head_dim][16]: not yet divided by the sum
  float* scores;   // [2][chunk tokens][16]
  float* rows;     // [16][head_dim]: output on its way to another dtype
  float* maximum;  // [group][16], in units of log2
  float* sum;      // [group][16]
  float* parts;    // [chunks][group][16] maxima, [chunks + kept][group][16] sums; only with masses
  // Only of integers:
  float* q_floats;  // [head_dim][16]: a query strip
  float* keys;      // [6][chunk tokens]: scales
  std::byte*
      wide;  // [2][chunk] key and value strips of bytes, WideStripPitch each, or as AMX has them
};

// Query strips of one lane that walk the same chunks: from several rows or a part of one.
struct QueryGroup {
  static constexpr int64_t kMostStrips = kMaxBlockTokens / kStripTokens;

  QueryGroup(const AttentionArgs& a, int64_t l, std::span<const int32_t> kept, std::byte* base)
      : args(a), lane(l), kv_blocks(kept), memory(base, a) {}
  int64_t FirstToken(int64_t i) const { return strip[i] * kStripTokens; }

  const AttentionArgs& args;
  const int64_t lane;
  const std::span<const int32_t> kv_blocks;  // that its rows keep
  const GroupMemory memory;
  int64_t size = 0;
  int64_t strip[kMostStrips];  // numbers in the lane's order
  int32_t row[kMostStrips];    // of the call, that each belongs to
  bool begun = false;          // a chunk was added
};

// Reads the queries.
void BeginGroup(QueryGroup& group);
// A packed strip of bytes to where the group has it.
void PlaceByteQuery(const std::byte* strip, int64_t head_dim, std::byte* to);
// Merges a chunk into the group, and meanwhile touches what comes next.
void AddChunk(QueryGroup& group, const Chunk& chunk, const NextReads& next);
// Writes output, log-sum-exp and masses.
void FinishGroup(const QueryGroup& group);

}  // namespace equitile

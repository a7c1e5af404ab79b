#include "equitile/kernel/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "equitile/kernel/attention/attention_call.h"
#include "equitile/kernel/attention/attention_check.h"

namespace equitile {

AttentionRows AttentionRows::FromMask(const BlockMask& mask) {
  AttentionRows rows;
  rows.rows.reserve(static_cast<size_t>(mask.LaneCount() * mask.QBlocks()));
  rows.kv_blocks.reserve(static_cast<size_t>(mask.Kept()));
  for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
    for (int64_t q_block = 0; q_block < mask.QBlocks(); ++q_block) {
      rows.rows.push_back({static_cast<int32_t>(lane), static_cast<int32_t>(q_block)});
      mask.ForEachKept(lane, q_block, [&](int64_t kv_block) {
        rows.kv_blocks.push_back(static_cast<int32_t>(kv_block));
      });
      rows.first.push_back(static_cast<int64_t>(rows.kv_blocks.size()));
    }
  }
  return rows;
}

AttentionRows AttentionRows::Dense(Lanes lanes, const BlockGrid& grid) {
  return FromMask(BlockMask::Dense(lanes, grid));
}

void AttentionRows::Add(int64_t lane, int64_t q_block, std::span<const int32_t> kept) {
  rows.push_back({static_cast<int32_t>(lane), static_cast<int32_t>(q_block)});
  kv_blocks.insert(kv_blocks.end(), kept.begin(), kept.end());
  first.push_back(static_cast<int64_t>(kv_blocks.size()));
}

void Attention(const AttentionArgs& given, ThreadPool& pool, Workspace& workspace) {
  AttentionArgs args = given;
  if (args.masses != nullptr) args.compute = Compute::kF32;
  if (args.compute == Compute::kF32) args.k_center = {};
  CheckAttention(args);
  if (args.rows->Count() == 0) return;
  AttentionCall call(args, pool.Threads(), workspace);
  pool.Run([&](int thread) { call.Run(thread); });
}

void MergePartial(float* out, float* lse, const float* out2, const float* lse2, int64_t tokens,
                  int64_t head_dim) {
  for (int64_t t = 0; t < tokens; ++t) {
    constexpr float kNothing = -std::numeric_limits<float>::infinity();
    if (lse2[t] == kNothing) continue;
    const float high = std::max(lse[t], lse2[t]);
    const float w1 = std::exp(lse[t] - high), w2 = std::exp(lse2[t] - high);
    const float a = w1 / (w1 + w2), b = w2 / (w1 + w2);
    float* row = out + t * head_dim;
    const float* row2 = out2 + t * head_dim;
    for (int64_t i = 0; i < head_dim; ++i) row[i] = row[i] * a + row2[i] * b;
    lse[t] = high + std::log(w1 + w2);
  }
}

}  // namespace equitile

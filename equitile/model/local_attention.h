// Self-attention where all tokens are at home: one call of the kernel. What benches measure, and
// what the distributed one is compared with.
#pragma once

#include <cstdint>

#include "equitile/kernel/attention.h"
#include "equitile/model/self_attention.h"

namespace equitile {

// Dense, over lanes of `tokens` tokens each.
class LocalAttention {
 public:
  LocalAttention(Lanes lanes, int64_t tokens, int64_t head_dim, ThreadPool& pool);

  void operator()(const SelfAttentionCall& call);

 private:
  Lanes lanes_;
  BlockGrid grid_;
  int64_t head_dim_;
  ThreadPool& pool_;
  AttentionRows rows_;
  AttentionWorkspace workspace_;
};

}  // namespace equitile

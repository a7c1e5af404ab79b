#include "equitile/model/local_attention.h"

namespace equitile {

LocalAttention::LocalAttention(Lanes lanes, int64_t tokens, int64_t head_dim, ThreadPool& pool)
    : lanes_(lanes),
      grid_{.q_tokens = tokens, .kv_tokens = tokens},
      head_dim_(head_dim),
      pool_(pool),
      rows_(AttentionRows::Dense(lanes, grid_)) {}

void LocalAttention::operator()(const SelfAttentionCall& call) {
  AttentionArgs args;
  args.lanes = lanes_;
  args.grid = grid_;
  args.head_dim = head_dim_;
  args.scale = call.scale;
  args.rows = &rows_;
  args.q = call.q;
  args.k = call.k;
  args.v = call.v;
  args.out = View(call.out, {lanes_.batch, grid_.q_tokens, lanes_.heads, head_dim_});
  Attention(args, pool_, workspace_);
}

}  // namespace equitile

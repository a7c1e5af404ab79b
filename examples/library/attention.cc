// Attention of two heads over 100 tokens, one of them sparse, with the installed package.
#include <equitile/kernel/attention/attention.h>

#include <cstdio>
#include <vector>

int main() {
  using namespace equitile;
  const BlockGrid grid{.q_tokens = 100, .kv_tokens = 100, .block_tokens = 32};
  BlockMask mask = BlockMask::Dense({.batch = 1, .heads = 2}, grid);
  mask.Set(/*lane=*/1, /*q_block=*/0, /*kv_block=*/3, false);
  const AttentionRows rows = AttentionRows::FromMask(mask);
  std::vector<float> ones(100 * 2 * 64, 1.0f), out(ones.size()), lse(2 * 100);
  const ConstView tokens(ones.data(), {1, 100, 2, 64});  // [batch, tokens, heads, head_dim]
  ThreadPool pool(2);
  Workspace workspace;
  Attention({.lanes = mask.lanes(), .grid = grid, .head_dim = 64, .scale = 0.125f, .rows = &rows, .q = tokens,
             .k = tokens, .v = tokens, .out = View(out.data(), {1, 100, 2, 64}), .lse = lse.data()},
            pool, workspace);
  std::printf("output %.3f, log-sum-exp of the dense head %.3f, of the sparse one %.3f\n", out[0], lse[0], lse[100]);
}

// The problems that `equitile bench attention` times: random numbers, a mask, and the question
// whether the answer is right. Apart from the command, so that a wrong answer can be tested.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "equitile/base/thread_pool.h"
#include "equitile/kernel/attention/attention.h"
#include "equitile/kernel/reference/attention_reference.h"
#include "equitile/pattern/block_mask.h"
#include "equitile/tensor/tensor.h"

namespace equitile {

// Every row keeps exactly round(density * kv_blocks) blocks, at least 1, drawn from the seed.
BlockMask RandomRowMask(Lanes lanes, const BlockGrid& grid, double density, uint64_t seed);
// Every row keeps one block, drawn from the seed.
BlockMask OneBlockMask(Lanes lanes, const BlockGrid& grid, uint64_t seed);

class AttentionWorkload {
 public:
  // Uniform numbers of variance 1, made on the pool's threads. `orders`: [lanes], or empty for the
  // natural order; `token_grid` is what they are orders of.
  struct Options {
    int64_t head_dim = 128;
    DType dtype = DType::kF32;
    Compute compute = Compute::kF32;
    uint64_t seed = 1;
    std::vector<TokenOrder> orders;
    TokenGrid token_grid;
  };
  AttentionWorkload(const BlockMask& mask, const Options& options, ThreadPool& pool);
  AttentionWorkload(const AttentionWorkload&) = delete;
  AttentionWorkload& operator=(const AttentionWorkload&) = delete;

  const AttentionArgs& Args() const { return args_; }
  // From now on: the same numbers in other arithmetic, into the same output.
  void Use(Compute compute) { args_.compute = compute; }
  double Flops() const;  // 4 * head_dim per kept query-key pair

  // Compares a sample of rows, the heaviest, the last and some others, with the reference. Returns
  // the element whose error is the largest fraction of its tolerance; throws Error if it is more
  // than the tolerance.
  AttentionError Check(ThreadPool& pool) const;

 private:
  std::vector<int64_t> SampleRows() const;

  AttentionRows rows_;
  Tensor q_, k_, v_, out_;
  std::vector<float> lse_;
  std::map<TokenOrder, std::vector<int32_t>> order_maps_;
  std::vector<const int32_t*> orders_;  // by lane
  AttentionArgs args_;
};

}  // namespace equitile

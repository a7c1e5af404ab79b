// Sparse VideoGen's choice per head (SVG1: arXiv 2502.01776, svg-project/Sparse-VideoGen 5ce7b01,
// its rule for Wan): one band with a sink, laid along frames or along places, whichever does less
// harm to a few sampled rows. The rule alone; whoever has the tensors brings their rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/thread_pool.h"
#include "equitile/kernel/attention/block_partials.h"
#include "equitile/pattern/block_mask.h"

namespace equitile {

struct SvgOptions {
  double density = 0.3;  // of the band; the sink comes on top, and blocks are whole
  int64_t sampled_rows = 64;
  uint64_t seed = 1;  // of the sample; theirs is drawn anew every time
};

// The blocks that any head keeps, in its own order: queries and keys at most n (1 - sqrt(1 - s))
// tokens apart, rounded up to whole blocks, where s is the density less what text takes; and as
// sink the first H * W positions of the video as keys. Text is always kept.
BlockMask SvgMask(const TokenGrid& grid, int64_t block_tokens, const SvgOptions& options);

// [sampled_rows], ascending, each once: tokens whose rows are looked at; all of them if there are
// fewer.
std::vector<int64_t> SvgSampledTokens(const TokenGrid& grid, const SvgOptions& options);

// Memory that serves all lanes and steps: fresh pages cost more than what is computed in them.
struct SvgScratch {
  PackedLane lane;
  std::vector<BlockPartials> partials;  // one per thread
};

// One head. Keys and values as they lie at home.
struct SvgSample {
  std::span<const int64_t> tokens;      // [rows] at home
  std::span<const float> queries;       // [rows, head_dim]
  std::span<const float> keys, values;  // [tokens, head_dim]
  float scale = 0;
};

// fhw (a spatial head) or hwf (a temporal one): under whose mask the outputs of the sampled rows
// have the smaller mean square error; fhw if equal. Theirs judges by bands of two frames whatever
// the density; here by the mask that is used. Throws InputError for scores or values that are not
// finite.
TokenOrder ChooseSvgOrder(const SvgSample& sample, const BlockMask& mask, const TokenGrid& grid,
                          ThreadPool& pool, SvgScratch& scratch);

}  // namespace equitile

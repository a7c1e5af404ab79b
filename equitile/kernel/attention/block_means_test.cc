#include "equitile/kernel/attention/block_means.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "equitile/kernel/attention/attention_testing.h"
#include "equitile/kernel/target_testing.h"

namespace equitile {
namespace {

using testing::Layout;
using testing::PackedStrips;
using testing::Problem;
using testing::ProblemOptions;

class BlockMeansTest : public testing::TargetTest {};

// As the header says: 16 after each other, these sums after each other, times 1 / tokens.
std::vector<float> Expected(const Problem& problem, int64_t lane, const int32_t* order) {
  const ProblemOptions& o = problem.options;
  std::vector<float> means;
  for (int64_t block = 0; block < o.grid.KvBlocks(); ++block) {
    const Range tokens = o.grid.KvBlockTokens(block);
    for (int64_t d = 0; d < o.head_dim; ++d) {
      auto at = [&](int64_t p) {
        return problem.k.view().Load(o.lanes.BatchOf(lane), order ? order[p] : p,
                                     o.lanes.HeadOf(lane), d);
      };
      float total = 0.0f;
      for (int64_t begin = tokens.begin; begin < tokens.end; begin += 16) {
        float strip = at(begin);
        for (int64_t p = begin + 1; p < std::min(begin + 16, tokens.end); ++p) strip += at(p);
        total = begin == tokens.begin ? strip : total + strip;
      }
      means.push_back(total * (1.0f / static_cast<float>(tokens.size())));
    }
  }
  return means;
}

TEST_P(BlockMeansTest, AnySourceGivesTheBitsOfTheFormula) {
  for (const ProblemOptions& options :
       {ProblemOptions{.lanes = {2, 3},
       .grid = {.q_tokens = 1, .kv_tokens = 101, .block_tokens = 16},
       .head_dim = 24},
        {.grid = {.q_tokens = 1, .kv_tokens = 1, .block_tokens = 64}, .head_dim = 8},
        {.lanes = {1, 2},
        .grid = {.q_tokens = 1, .kv_tokens = 700, .block_tokens = 256},
        .head_dim = 512,
        .in = DType::kBF16},
        {.grid = {.q_tokens = 1, .kv_tokens = 130, .block_tokens = 48},
        .head_dim = 40,
        .in_layout = Layout::kDimApart}}) {
    Problem problem(options);
    std::vector<int32_t> order(static_cast<size_t>(options.grid.kv_tokens));
    std::iota(order.begin(), order.end(), 0);
    std::rotate(order.begin(), order.begin() + options.grid.kv_tokens / 3, order.end());
    std::vector<const int32_t*> orders(static_cast<size_t>(options.lanes.Count()));
    orders.back() = order.data();
    problem.args.kv_order = orders;

    auto produce = [&](int64_t lane, int64_t first, int64_t count, float* rows) {
      for (int64_t t = first; t < first + count; ++t) {
        for (int64_t d = 0; d < options.head_dim; ++d)
          *rows++ =
              problem.k.view().Load(options.lanes.BatchOf(lane), t, options.lanes.HeadOf(lane), d);
      }
    };
    const PackedStrips packed(problem.args, problem.args.k, StripLayout::kKey);
    const TokenSource sources[] = {problem.args.k, packed.Source(), RowProducer(produce)};
    for (size_t s = 0; s < 3; ++s) {
      for (int64_t lane = 0; lane < options.lanes.Count(); ++lane) {
        const int64_t blocks = options.grid.KvBlocks(), stride = options.head_dim + 3;
        constexpr float kUntouched = 99.0f;
        std::vector<float> got(static_cast<size_t>(blocks * stride), kUntouched);
        BlockMeansArgs args = {.source = &sources[s],
                               .lanes = options.lanes,
                               .lane = lane,
                               .grid = options.grid,
                               .head_dim = options.head_dim,
                               .token_at_position = orders[static_cast<size_t>(lane)],
                               .blocks = {0, blocks / 2},
                               .stride = stride};
        BlockMeans(args, got.data());
        args.blocks = {blocks / 2, blocks};
        BlockMeans(args, got.data() + blocks / 2 * stride);
        const std::vector<float> want = Expected(problem, lane, orders[static_cast<size_t>(lane)]);
        for (int64_t b = 0; b < blocks; ++b) {
          for (int64_t d = 0; d < stride; ++d) {
            ASSERT_EQ(got[static_cast<size_t>(b * stride + d)],
                      d < options.head_dim ? want[static_cast<size_t>(b * options.head_dim + d)]
                                           : kUntouched)
                << "source " << s << ", lane " << lane << ", block " << b << ", dim " << d;
          }
        }
      }
    }
  }
}

EQUITILE_TEST_ON_ALL_TARGETS(BlockMeansTest);

}  // namespace
}  // namespace equitile

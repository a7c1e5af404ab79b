// Costs of the published sizes: what `inspect` and the benches count with.
#include <gtest/gtest.h>

#include "equitile/model/text/umt5_config.h"
#include "equitile/model/wan/wan_config.h"

namespace equitile {
namespace {

struct Row {
  const char* shape;
  int64_t tokens;
  double tflop, self_share;  // of one pass, 512 text rows
};

TEST(WanFlops, AsPublished) {
  const Row rows[] = {
      {"wan-1.3b", 32760, 283, 0.699},  {"wan-1.3b", 20280, 129, 0.589},
      {"wan-1.3b", 14040, 72.9, 0.498}, {"wan-1.3b", 1560, 4.65, 0.096},
      {"wan-1.3b", 1280, 3.78, 0.080},  {"wan-1.3b", 75600, 1250, 0.843},
      {"wan-14b", 32760, 1678, 0.524},  {"wan-14b", 14040, 505, 0.320},
      {"wan-14b", 75600, 6523, 0.718},
  };
  for (const Row& row : rows) {
    const WanFlops flops = CountWanFlops(ParseWanShape(row.shape), row.tokens, 512);
    // Without keys and values of the text, which are made once per prompt: some per cent of the
    // smallest cases.
    EXPECT_LE(flops.Total() / 1e12, row.tflop * 1.003) << row.shape << " " << row.tokens;
    EXPECT_NEAR(flops.self_attention / 1e12, row.tflop * row.self_share, row.tflop * 0.002)
        << row.shape << " " << row.tokens;
  }
}

TEST(Umt5Config, ParametersOfWansEncoder) {
  const Umt5Config xxl{
      .vocab_size = 256384, .d_model = 4096, .d_kv = 64, .d_ff = 10240, .layers = 24, .heads = 64};
  EXPECT_EQ(xxl.Parameters(), 5'680'910'336);
}

}  // namespace
}  // namespace equitile

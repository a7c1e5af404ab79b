// The transformer against what diffusers computes from the same checkpoint (tests/golden/README.md:
// layout and tolerances), also in parts on several ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "equitile/base/rng.h"
#include "equitile/io/arrays/safetensors.h"
#include "equitile/model/golden/golden_stages.h"
#include "equitile/model/wan/wan_transformer.h"
#include "equitile/model/wan/wan_transformer_testing.h"
#include "tests/in_repository.h"

namespace equitile {
namespace {

const std::filesystem::path kGolden = InRepository("tests/golden");

struct TinyModel {
  explicit TinyModel(WeightType type = WeightType::kF32,
                     const std::filesystem::path& folder = kGolden / "tiny-wan/transformer")
      : config(ReadWanConfig(folder / "config.json")), bytes(WanWeights::Bytes(config, type)) {
    ThreadPool pool(2);
    WanWeights::Pack(TensorFiles::OpenFolder(folder), config, type, bytes.span(), pool);
    weights = WanWeights(config, type, bytes.span());
  }
  WanConfig config;
  AlignedBuffer<std::byte> bytes;
  WanWeights weights;
};

// One case of a golden file.
struct Case {
  Case(const TensorFiles& file, const std::string& name)
      : latent(file["latent"].ToF32()),
        text(file[name + ".text"].ToF32()),
        text_tokens(file[name + ".text_tokens"].Integers()[0]),
        timestep(file[name + ".timestep"].Floats()[0]) {}
  Tensor latent, text;
  int64_t text_tokens;
  float timestep;
};

// One pass on one rank; what taps see goes into `stages`.
Tensor RunCase(const TinyModel& model, const Case& c, int threads, WanStages* stages = nullptr,
               TokenOrder order = {}) {
  ThreadPool pool(threads);
  WanTransformer transformer(model.config, model.weights, pool);
  const WanTap tap = stages != nullptr ? WanTap(*stages) : WanTap();
  const WanText text = transformer.Text(c.text, c.text_tokens, tap);
  return testing::RunPass(transformer, {&c.latent, 1}, {&text, 1}, c.timestep, 1, pool, tap, order);
}

struct Difference {
  double max = 0.0, l2 = 0.0;  // over the rms of what is expected
  size_t at = 0;
};

Difference Compare(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double square = 0.0, error = 0.0, worst = 0.0;
  Difference result;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double e = std::fabs(static_cast<double>(a[i]) - b[i]);
    square += static_cast<double>(b[i]) * b[i];
    error += e * e;
    if (e > worst || std::isnan(e)) worst = e, result.at = i;
  }
  const double rms = std::sqrt(square / static_cast<double>(b.size()));
  result.max = worst / rms;
  result.l2 = std::sqrt(error / square);
  return result;
}

class WanGolden : public ::testing::TestWithParam<const char*> {
 protected:
  const TensorFiles file = TensorFiles::OpenFile(kGolden / GetParam());

  std::vector<std::string> Cases() const { return GoldenCases(file); }
  void ExpectWithinTolerance(TokenOrder order) const;
};

// The file's rows by their numbers at home.
std::vector<int64_t> RowsAtHome(std::vector<int64_t> rows, TokenGrid grid, TokenOrder order) {
  grid.home = order;
  const std::vector<int32_t> tokens = TokenAtPosition(grid, TokenOrder::kFHW);
  for (int64_t& row : rows) row = tokens[static_cast<size_t>(row)];
  return rows;
}

void WanGolden::ExpectWithinTolerance(TokenOrder order) const {
  const TinyModel model;
  for (const std::string& name : Cases()) {
    const Case c(file, name);
    WanStages stages(model.config);
    const Tensor output = RunCase(model, c, 2, &stages, order);
    stages.Put("output", {output.DataAs<float>(), static_cast<size_t>(output.Elements())});
    const TokenGrid grid = PatchGrid(c.latent, model.config.patch);
    const auto rows = RowsAtHome(GoldenRows(file, grid.VideoTokens()), grid, order);
    for (const StoredTensor& tensor : file.tensors()) {
      if (!tensor.name.starts_with(name + ".")) continue;
      const std::string what = tensor.name.substr(name.size() + 1);
      if (what.starts_with("timestep") && what != "timestep_proj") continue;
      if (what.starts_with("rope") || what == "text" || what == "text_tokens") continue;
      const std::vector<float> want = tensor.Floats();
      const std::vector<float> got = stages.InFileLayout(what, rows);
      ASSERT_FALSE(got.empty()) << what;
      const Difference difference = Compare(got, want);
      double tolerance = 1e-4, l2_tolerance = 2e-5;
      if (what == "patch_embedding" || what == "text_projected") tolerance = 1e-5;
      if (what == "temb" || what == "timestep_proj") tolerance = l2_tolerance = 6e-5;
      if (what == "sinusoid") tolerance = l2_tolerance = 8e-5;
      EXPECT_LE(difference.max, tolerance)
          << TokenOrderName(order) << ": " << tensor.name << " at " << difference.at;
      EXPECT_LE(difference.l2, l2_tolerance) << TokenOrderName(order) << ": " << tensor.name;
    }
  }
}

TEST_P(WanGolden, EveryTensorWithinItsTolerance) { ExpectWithinTolerance(TokenOrder::kFHW); }

TEST_P(WanGolden, EveryTensorWithinItsToleranceInAnyTokenOrder) {
  for (TokenOrder order : {TokenOrder::kFWH, TokenOrder::kHFW, TokenOrder::kHWF, TokenOrder::kWFH,
                           TokenOrder::kWHF, TokenOrder::kHilbert, TokenOrder::Tiles(2, 2, 3)})
    ExpectWithinTolerance(order);
}

// Dense attention adds the same terms in another order: the output moves by roundings of sums.
TEST_P(WanGolden, TokenOrdersAgreeAndDoNotDependOnThreadsOrRanks) {
  const TinyModel model;
  const Case c(file, Cases()[0]);
  const Tensor natural = RunCase(model, c, 1);
  const std::span<const float> expected(natural.DataAs<float>(),
                                        static_cast<size_t>(natural.Elements()));
  ThreadPool pool(2);
  WanTransformer transformer(model.config, model.weights, pool);
  const WanText text = transformer.Text(c.text, c.text_tokens);
  for (TokenOrder order : {TokenOrder::kHWF, TokenOrder::kHilbert, TokenOrder::Tiles(2, 2, 3)}) {
    const Tensor one = RunCase(model, c, 1, nullptr, order);
    EXPECT_LE(Compare({one.DataAs<float>(), expected.size()}, expected).max, 2e-5)
        << TokenOrderName(order);
    EXPECT_TRUE(testing::SameBits(RunCase(model, c, 3, nullptr, order), one));
    for (int ranks : {2, 3, 5}) {
      const Tensor other = testing::RunPass(transformer, {&c.latent, 1}, {&text, 1}, c.timestep,
                                            ranks, pool, {}, order);
      EXPECT_TRUE(testing::SameBits(other, one)) << TokenOrderName(order) << ", " << ranks;
    }
  }
}

TEST_P(WanGolden, RotationsBitForBit) {
  if (file.Find("cond.rope_cos") == nullptr) GTEST_SKIP();
  const TinyModel model;
  const Case c(file, "cond");
  const TokenGrid grid = PatchGrid(c.latent, model.config.patch);
  const auto rows = GoldenRows(file, grid.VideoTokens());
  WanStages stages(model.config);
  stages.PutRotations(grid, rows);
  EXPECT_EQ(stages.InFileLayout("rope_cos", rows), file["cond.rope_cos"].Floats());
  EXPECT_EQ(stages.InFileLayout("rope_sin", rows), file["cond.rope_sin"].Floats());
}

TEST_P(WanGolden, ThreadsRanksAndBatchDoNotChangeABit) {
  const TinyModel model;
  std::vector<Case> cases;
  for (const std::string& name : Cases()) cases.emplace_back(file, name);
  const Case& c = cases[0];
  const Tensor one = RunCase(model, c, 1);
  for (int threads : {2, 3}) {
    const Tensor other = RunCase(model, c, threads);
    EXPECT_TRUE(testing::SameBits(one, other)) << threads << " threads";
  }
  // The first two cases as one batch, with the first one's timestep; here rank 1 and 2 of 5 share
  // an item.
  Case second = cases.size() > 1 ? Case(file, Cases()[1]) : Case(file, Cases()[0]);
  second.timestep = c.timestep;
  const Tensor alone = RunCase(model, second, 1);
  ThreadPool pool(2);
  WanTransformer transformer(model.config, model.weights, pool);
  std::vector<WanText> texts;
  texts.push_back(transformer.Text(c.text, c.text_tokens));
  texts.push_back(transformer.Text(second.text, second.text_tokens));
  std::vector<Tensor> latents;
  for (int i = 0; i < 2; ++i) latents.push_back(file["latent"].ToF32());
  for (int ranks : {1, 2, 3, 5}) {
    const Tensor both = testing::RunPass(transformer, latents, texts, c.timestep, ranks, pool);
    const int64_t half = both.Elements() / 2;
    const auto bytes = static_cast<size_t>(half) * sizeof(float);
    EXPECT_EQ(std::memcmp(both.DataAs<float>(), one.DataAs<float>(), bytes), 0)
        << ranks << " ranks, item 0";
    EXPECT_EQ(std::memcmp(both.DataAs<float>() + half, alone.DataAs<float>(), bytes), 0)
        << ranks << " ranks, item 1";
  }
}

INSTANTIATE_TEST_SUITE_P(Files, WanGolden,
                         ::testing::Values("transformer_1x8x8.safetensors",
                                           "transformer_3x10x6.safetensors",
                                           "transformer_5x14x16.safetensors"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(12, name.find('.') - 12);
                         });

// All zero rows as one key give what all of them give as keys of their own.
TEST(WanText, ZeroRowsAsOneKey) {
  const TinyModel model;
  const TensorFiles file = TensorFiles::OpenFile(kGolden / "transformer_3x10x6.safetensors");
  const Case c(file, "cond");
  ThreadPool pool(2);
  WanTransformer transformer(model.config, model.weights, pool);
  const int64_t real = c.text.shape()[0], dim = model.config.text_dim;
  Tensor padded = Tensor::Zeros(DType::kF32, {c.text_tokens, dim});
  std::memcpy(padded.DataAs<float>(), c.text.DataAs<float>(),
              static_cast<size_t>(real * dim) * sizeof(float));
  const WanText folded = transformer.Text(c.text, c.text_tokens);
  const WanText whole = transformer.Text(padded, c.text_tokens);
  EXPECT_EQ(folded.keys, real + 1);
  EXPECT_EQ(whole.keys, c.text_tokens);
  auto run = [&](const WanText& text) {
    return testing::RunPass(transformer, {&c.latent, 1}, {&text, 1}, c.timestep, 1, pool);
  };
  const Tensor a = run(folded), b = run(whole);
  const Difference difference = Compare({a.DataAs<float>(), static_cast<size_t>(a.Elements())},
                                        {b.DataAs<float>(), static_cast<size_t>(b.Elements())});
  EXPECT_LE(difference.max, 2e-5);
  EXPECT_GT(difference.max, 0.0);
}

// bf16 rounds every weight by up to 2^-9: far from f32's result, near enough to be the same model.
TEST(WanWeightsBf16, IsClose) {
  const TinyModel model(WeightType::kBF16);
  const TensorFiles file = TensorFiles::OpenFile(kGolden / "transformer_3x10x6.safetensors");
  const Case c(file, "cond");
  const Tensor output = RunCase(model, c, 2);
  const Difference difference =
      Compare({output.DataAs<float>(), static_cast<size_t>(output.Elements())},
              file["cond.output"].Floats());
  EXPECT_LE(difference.l2, 0.03);
  EXPECT_GT(difference.l2, 1e-4);
}

// wan-mini as diffusers saved it: bf16, except what stays f32 in every model.
TEST(WanWeightsBf16, LosesNothingOfACheckpointInBf16) {
  const auto mini = kGolden / "../../models/wan-mini/transformer";
  const TinyModel wide(WeightType::kF32, mini), narrow(WeightType::kBF16, mini);
  Tensor latent(DType::kF32, {wide.config.in_channels, 2, 4, 6});
  Tensor rows(DType::kF32, {3, wide.config.text_dim});
  Rng rng(2);
  for (int64_t i = 0; i < latent.Elements(); ++i) latent.DataAs<float>()[i] = rng.Normal();
  for (int64_t i = 0; i < rows.Elements(); ++i) rows.DataAs<float>()[i] = rng.Normal();
  const auto run = [&](const TinyModel& model) {
    ThreadPool pool(2);
    WanTransformer transformer(model.config, model.weights, pool);
    const WanText text = transformer.Text(rows, 8);
    return testing::RunPass(transformer, {&latent, 1}, {&text, 1}, 345.0f, 1, pool);
  };
  EXPECT_TRUE(testing::SameBits(run(wide), run(narrow)));
}

// A pass over some tokens whose self-attention looks at each token alone.
struct SkippingPass {
  std::vector<float> rows;
  int64_t products = 0;
};

// skips: the transformer is told; else it is left to attention to give zeros.
SkippingPass RunSkipping(const TinyModel& model, const std::vector<int64_t>& heads, bool skips) {
  const TensorFiles file = TensorFiles::OpenFile(kGolden / "transformer_3x10x6.safetensors");
  const Case c(file, "cond");
  ThreadPool pool(2);
  WanTransformer transformer(model.config, model.weights, pool);
  const WanText text = transformer.Text(c.text, c.text_tokens);
  const WanText* const texts[] = {&text};
  const ConstView latents[] = {c.latent.view()};
  const Range home[] = {{0, PatchGrid(c.latent, model.config.patch).VideoTokens()}};
  const int64_t dim = model.config.head_dim;
  SkippingPass result;
  const auto attention = [&](const SelfAttentionCall& call) {
    EXPECT_EQ(call.skipped.empty(), !skips || heads.empty());
    std::vector<float> q(static_cast<size_t>(dim)), v(q);
    float* to = call.out;
    for (int64_t token = 0; token < home[0].end; ++token) {
      for (int64_t head = 0; head < model.config.heads; ++head) {
        const bool is_skipped = std::ranges::binary_search(heads, head);
        if (is_skipped && skips) continue;
        if (!is_skipped) {
          call.q(head, token, 1, q.data());
          call.v(head, token, 1, v.data());
        }
        for (size_t i = 0; i < q.size(); ++i) *to++ = is_skipped ? 0.0f : v[i] + 0.5f * q[i];
      }
    }
  };
  const auto skipped = [&](const ComingLayer& layer) {
    EXPECT_EQ(layer.step, 3);
    EXPECT_EQ(layer.sigma, 0.25);
    return layer.layer == 0 ? std::vector<int64_t>() : heads;
  };
  // The first layer skips nothing: attention must not either.
  const auto attend = [&](const SelfAttentionCall& call) {
    if (call.layer > 0) return attention(call);
    std::fill_n(call.out, home[0].end * model.config.Width(), 0.25f);
  };
  WanTimes times;
  WanPass pass;
  pass.step = 3;
  pass.sigma = 0.25;
  pass.timestep = c.timestep;
  pass.latents = latents;
  pass.texts = texts;
  pass.home = home;
  pass.attention = attend;
  if (skips) pass.skipped_heads = skipped;
  pass.times = &times;
  result.rows.resize(static_cast<size_t>(home[0].end * model.config.OutFeatures()));
  transformer.Forward(pass, result.rows.data());
  result.products = times.linear_products;
  return result;
}

TEST(WanTransformer, SkippedHeadsHaveNoValuesAndNoInputsOfTheOutput) {
  const TinyModel model;
  const WanConfig& config = model.config;
  std::vector<int64_t> all;
  for (int64_t head = 0; head < config.heads; ++head) all.push_back(head);
  const int64_t tokens = 3 * 5 * 3;
  for (const std::vector<int64_t>& heads : std::vector<std::vector<int64_t>>{
           {}, {0}, {1}, {config.heads - 1}, {0, config.heads - 1}, all}) {
    const SkippingPass whole = RunSkipping(model, heads, false),
                       some = RunSkipping(model, heads, true);
    EXPECT_EQ(std::memcmp(whole.rows.data(), some.rows.data(), whole.rows.size() * sizeof(float)),
              0)
        << heads.size() << " heads";
    // A column of values and an input of the output for each channel, in all layers but the first.
    const int64_t channels = std::ssize(heads) * config.head_dim;
    EXPECT_EQ(whole.products - some.products,
              (config.layers - 1) * tokens * 2 * channels * config.Width());
  }
}

TEST(WanTransformer, RefusesWhatDoesNotFit) {
  const TinyModel model;
  ThreadPool pool(1);
  WanTransformer transformer(model.config, model.weights, pool);
  const Tensor narrow = Tensor::Zeros(DType::kF32, {3, model.config.text_dim + 1});
  EXPECT_THROW(transformer.Text(narrow, 16), InputError);
  const Tensor text_rows = Tensor::Zeros(DType::kF32, {3, model.config.text_dim});
  EXPECT_THROW(transformer.Text(text_rows, 2), InputError);
  const WanText text = transformer.Text(text_rows, 16);
  auto run = [&](const Shape& shape) {
    const Tensor latent = Tensor::Zeros(DType::kF32, shape);
    testing::RunPass(transformer, {&latent, 1}, {&text, 1}, 1.0f, 1, pool);
  };
  EXPECT_THROW(run({16, 1, 3, 4}), InputError);
  EXPECT_THROW(run({15, 1, 2, 4}), InputError);
  EXPECT_THROW(run({16, 1025, 2, 2}), InputError);
}

}  // namespace
}  // namespace equitile

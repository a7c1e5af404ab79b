// The denoising loop against whole runs of diffusers' WanPipeline, and against itself on several
// ranks.
#include "equitile/model/sampling/denoise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "equitile/base/error.h"
#include "equitile/comm/solo/solo.h"
#include "equitile/comm/threads/run_ranks.h"
#include "equitile/io/arrays/safetensors.h"
#include "equitile/model/wan/wan_transformer_testing.h"
#include "tests/in_repository.h"

namespace equitile {
namespace {

const std::filesystem::path kGolden = InRepository("tests/golden");

struct TinyModel {
  TinyModel()
      : config(ReadWanConfig(kGolden / "tiny-wan/transformer/config.json")),
        bytes(WanWeights::Bytes(config, WeightType::kF32)) {
    ThreadPool pool(2);
    WanWeights::Pack(TensorFiles::OpenFolder(kGolden / "tiny-wan/transformer"), config,
                     WeightType::kF32, bytes.span(), pool);
    weights = WanWeights(config, WeightType::kF32, bytes.span());
  }
  WanConfig config;
  AlignedBuffer<std::byte> bytes;
  WanWeights weights;
};

const TinyModel& Tiny() {
  static const TinyModel model;
  return model;
}

// A run as its files tell it.
struct GoldenRun {
  explicit GoldenRun(const std::string& name)
      : tensors(TensorFiles::OpenFile(kGolden / (name + ".safetensors"))) {
    if (name == "pipeline_unipc_cfg5") {
      config = {.width = 48, .height = 64, .frames = 5, .steps = 6, .guidance = 5.0, .seed = 42};
    } else if (name == "pipeline_unipc_cfg1") {
      config = {.width = 48,
                .height = 32,
                .frames = 9,
                .steps = 3,
                .guidance = 1.0,
                .flow_shift = 5.0,
                .seed = 7};
    } else if (name == "pipeline_euler_cfg5") {
      config = {.width = 32,
                .height = 48,
                .frames = 5,
                .steps = 3,
                .guidance = 5.0,
                .sampler = SamplerKind::kEuler,
                .seed = 2147483648};
    } else {
      config = {.width = 64,
                .height = 16,
                .frames = 1,
                .steps = 6,
                .guidance = 5.0,
                .flow_shift = 8.0,
                .text_rows = 16,
                .seed = 123456789012};
    }
  }
  TensorFiles tensors;
  GenerationConfig config;
};

struct Outcome {
  std::vector<std::vector<float>> latents, velocity;  // [steps]
  std::vector<float> last;
};

Outcome RunDenoise(const GoldenRun& run, int threads, int32_t ranks, int64_t stop_after = -1,
                   const DenoiseState* resume = nullptr, DenoiseState* stopped = nullptr) {
  Outcome outcome;
  const int64_t tokens = VideoTokens(Tiny().config, run.config);
  testing::GatheredRanks gathered(Tiny().config, run.config.Passes(), tokens, ranks);
  const auto body = [&](Communicator& comm) {
    ThreadPool pool(threads);
    WanTransformer transformer(Tiny().config, Tiny().weights, pool);
    std::vector<WanText> texts;
    texts.push_back(transformer.Text(run.tensors["prompt_embeds"].ToF32(), run.config.text_rows));
    if (run.config.Passes() == 2) {
      texts.push_back(
          transformer.Text(run.tensors["negative_prompt_embeds"].ToF32(), run.config.text_rows));
    }
    std::vector<const WanText*> views;
    for (const WanText& text : texts) views.push_back(&text);
    const std::vector<Range> home =
        HomeTokens(run.config.Passes(), Tiny().config.heads, tokens, comm.rank(), comm.size());
    const auto attention = [&](const SelfAttentionCall& call) {
      gathered.Call(call, home, comm.rank());
    };
    int64_t steps_done = resume != nullptr ? resume->sampler.step : 0;
    const auto stop = [&] { return comm.rank() == ranks - 1 && ++steps_done == stop_after; };
    const auto after = [&](const DenoiseStep& step) {
      outcome.latents.emplace_back(step.latents.begin(), step.latents.end());
      outcome.velocity.emplace_back(step.velocity.begin(), step.velocity.end());
      EXPECT_EQ(step.stopping, step.done == stop_after && step.done < step.steps);
      if (step.stopping && stopped != nullptr) {
        *stopped = {step.sampler->state(), {step.latents.begin(), step.latents.end()}};
      }
    };
    const DenoiseResult result = Denoise(transformer, comm,
                                         {.config = run.config,
                                          .texts = views,
                                          .attention = attention,
                                          .skipped_heads = {},
                                          .cache = nullptr,
                                          .stop_requested = stop,
                                          .after_step = after,
                                          .resume = comm.rank() == 0 ? resume : nullptr});
    EXPECT_EQ(result.finished, stop_after < 0 || stop_after == run.config.steps);
    if (comm.rank() == ranks - 1) outcome.last = result.latents;
  };
  if (ranks == 1) {
    SoloCommunicator solo;
    body(solo);
  } else {
    RunRanks(ranks, body);
  }
  return outcome;
}

// max |a - b| / rms(b)
double Error(std::span<const float> a, std::span<const float> b) {
  double worst = 0, square = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(double{a[i]} - b[i]);
    if (error > worst || std::isnan(error)) worst = error;
    square += double{b[i]} * b[i];
  }
  return worst / std::sqrt(square / static_cast<double>(b.size()));
}

class Denoising : public ::testing::TestWithParam<const char*> {};

TEST_P(Denoising, FollowsDiffusers) {
  const GoldenRun run(GetParam());
  const Outcome outcome = RunDenoise(run, 2, 1);
  const std::vector<float> latents = run.tensors["latents"].Floats();
  const std::vector<float> velocity = run.tensors["velocity"].Floats();
  ASSERT_EQ(outcome.latents.size(), static_cast<size_t>(run.config.steps));
  for (size_t step = 0; step < outcome.latents.size(); ++step) {
    const size_t n = outcome.latents[step].size();
    ASSERT_EQ(n * outcome.latents.size(), latents.size());
    EXPECT_LT(Error(outcome.latents[step], std::span(latents).subspan(step * n, n)), 3e-4) << step;
    EXPECT_LT(Error(outcome.velocity[step], std::span(velocity).subspan(step * n, n)), 3e-4)
        << step;
  }
}

TEST_P(Denoising, GivesTheSameBitsOnAnyRanksAndThreads) {
  const GoldenRun run(GetParam());
  const std::vector<float> expected = RunDenoise(run, 1, 1).last;
  for (auto [ranks, threads] : {std::pair(1, 3), {2, 1}, {3, 2}, {5, 1}}) {
    EXPECT_EQ(RunDenoise(run, threads, ranks).last, expected) << ranks << " ranks";
  }
}

// Velocities find their way back to where their patches came from, whoever had them at home.
TEST_P(Denoising, FollowsDiffusersInAnyTokenOrder) {
  GoldenRun run(GetParam());
  const std::vector<float> latents = run.tensors["latents"].Floats();
  for (TokenOrder order : {TokenOrder::kHilbert, TokenOrder::Tiles(1, 2, 2)}) {
    run.config.token_order = order;
    const Outcome outcome = RunDenoise(run, 2, 1);
    const size_t n = outcome.last.size();
    EXPECT_LT(Error(outcome.last, std::span(latents).last(n)), 3e-4) << TokenOrderName(order);
    for (auto [ranks, threads] : {std::pair(2, 1), {3, 2}, {5, 1}})
      EXPECT_EQ(RunDenoise(run, threads, ranks).last, outcome.last) << TokenOrderName(order);
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, Denoising,
                         ::testing::Values("pipeline_unipc_cfg5", "pipeline_unipc_cfg1",
                                           "pipeline_euler_cfg5", "pipeline_unipc_short_text"),
                         [](const auto& info) { return std::string(info.param).substr(9); });

// A failing step has one name: the one that people count by.
TEST(Denoising, StepsInMessagesAreCountedFromOne) {
  const GoldenRun run("pipeline_unipc_cfg1");
  for (const int32_t failing : {1, 2, 4}) {  // the run has 3 steps: 4 is what follows them
    try {
      RunRanks(1, [&](Communicator& comm) {
        ThreadPool pool(1);
        WanTransformer transformer(Tiny().config, Tiny().weights, pool);
        const WanText text =
            transformer.Text(run.tensors["prompt_embeds"].ToF32(), run.config.text_rows);
        const WanText* const texts[] = {&text};
        int32_t step = 0;
        const auto attention = [&](const SelfAttentionCall& call) {
          if (call.layer == 0 && ++step == failing) throw equitile::Error("now");
          const int64_t tokens = VideoTokens(Tiny().config, run.config);
          std::fill_n(call.out, tokens * Tiny().config.heads * Tiny().config.head_dim, 0.0f);
        };
        Denoise(transformer, comm,
                {.config = run.config,
                 .texts = texts,
                 .attention = attention,
                 .skipped_heads = {},
                 .cache = nullptr,
                 .stop_requested = {},
                 .after_step = {},
                 .resume = nullptr});
        throw equitile::Error("now");
      });
      FAIL();
    } catch (const CommError& error) {
      EXPECT_EQ(error.cause(), "now");
      EXPECT_EQ(error.place().step, failing <= 3 ? failing : -1);
    }
  }
}

// Two videos of one prompt in lock-step, one after the other in what comes back.
TEST(Denoising, VideosInLockStepGetTheBitsThatTheyGetAlone) {
  GoldenRun run("pipeline_unipc_cfg5");
  std::vector<float> expected;
  const std::vector<uint64_t> seeds = {run.config.seed, 5};
  for (uint64_t seed : seeds) {
    run.config.seed = seed;
    const std::vector<float> alone = RunDenoise(run, 1, 1).last;
    expected.insert(expected.end(), alone.begin(), alone.end());
  }
  const int64_t items = 2 * run.config.Passes(), tokens = VideoTokens(Tiny().config, run.config);
  for (int32_t ranks : {1, 3}) {
    testing::GatheredRanks gathered(Tiny().config, items, tokens, ranks);
    RunRanks(ranks, [&](Communicator& comm) {
      ThreadPool pool(1);
      WanTransformer transformer(Tiny().config, Tiny().weights, pool);
      const WanText prompt =
          transformer.Text(run.tensors["prompt_embeds"].ToF32(), run.config.text_rows);
      const WanText negative =
          transformer.Text(run.tensors["negative_prompt_embeds"].ToF32(), run.config.text_rows);
      const WanText* const texts[] = {&prompt, &negative, &prompt, &negative};
      const std::vector<Range> home =
          HomeTokens(items, Tiny().config.heads, tokens, comm.rank(), comm.size());
      const auto attention = [&](const SelfAttentionCall& call) {
        gathered.Call(call, home, comm.rank());
      };
      const DenoiseResult result = Denoise(transformer, comm,
                                           {.config = run.config,
                                            .seeds = seeds,
                                            .texts = texts,
                                            .attention = attention,
                                            .cache = nullptr,
                                            .stop_requested = {},
                                            .after_step = {},
                                            .resume = nullptr});
      if (comm.rank() == 0) EXPECT_EQ(result.latents, expected);
    });
  }
}

TEST(Denoising, StopsWhenAnyRankAsksAndGoesOnWithTheSameBits) {
  const GoldenRun run("pipeline_unipc_cfg5");
  const std::vector<float> expected = RunDenoise(run, 1, 1).last;
  for (int64_t stop_after : {1, 2, 5}) {
    DenoiseState stopped;
    RunDenoise(run, 1, 3, stop_after, nullptr, &stopped);
    EXPECT_EQ(stopped.sampler.step, stop_after);
    EXPECT_EQ(RunDenoise(run, 1, 2, -1, &stopped).last, expected) << stop_after;
  }
}

}  // namespace
}  // namespace equitile

// Small videos of wan-mini; nothing here depends on what its weights draw.
#include "equitile/generate/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "equitile/base/rng.h"
#include "equitile/comm/solo/solo.h"
#include "equitile/comm/threads/run_ranks.h"
#include "tests/in_repository.h"

namespace equitile {
namespace {

const std::string kModel = InRepository("models/wan-mini");

const CheckpointFolder& Folder() {
  static const CheckpointFolder folder{std::filesystem::path(kModel)};
  return folder;
}

// 2 x 3 x 4 tokens.
GenerationConfig Small() {
  GenerationConfig config = ReadGenerationConfig(Folder());
  config.width = 64;
  config.height = 48;
  config.frames = 5;
  config.steps = 3;
  config.seed = 7;
  return config;
}

struct Video {
  std::vector<float> latents, frames;
  friend bool operator==(const Video&, const Video&) = default;
};

// Rank 0's part of a whole run.
Video Make(Communicator& comm, int threads, const PipelineOptions& options,
           const GenerationConfig& config, const DenoiseHooks& hooks = {}) {
  ThreadPool pool(threads);
  Pipeline pipeline(Folder(), comm, pool, options);
  const std::vector<std::string> prompts = {"a red circle", ""};
  const std::vector<PromptRows> rows = pipeline.Encode(prompts, config.text_rows);
  Video video;
  video.latents = pipeline.Denoise(config, rows[0], rows[1], hooks).latents;
  pipeline.Decode(config, video.latents, [&](int64_t, std::span<const float> rgb) {
    video.frames.insert(video.frames.end(), rgb.begin(), rgb.end());
  });
  return video;
}

Video MakeOn(int32_t ranks, int threads, const PipelineOptions& options = {},
             const GenerationConfig& config = Small()) {
  Video video;
  RunRanks(ranks, [&](Communicator& comm) {
    Video mine = Make(comm, threads, options, config);
    if (comm.rank() == 0) video = std::move(mine);
  });
  return video;
}

TEST(Pipeline, GivesTheSameBitsOnAnyRanksAndThreads) {
  const Video one = MakeOn(1, 1);
  EXPECT_EQ(one.latents.size(), 16u * 2 * 6 * 8);
  EXPECT_EQ(one.frames.size(), 5u * 48 * 64 * 3);
  EXPECT_TRUE(MakeOn(1, 2) == one);
  EXPECT_TRUE(MakeOn(2, 2) == one);
  EXPECT_TRUE(MakeOn(3, 1) == one);
  PipelineOptions ulysses;
  ulysses.planner = "ulysses";
  EXPECT_TRUE(MakeOn(5, 1, ulysses) == one);
  GenerationConfig other = Small();
  other.seed = 8;
  EXPECT_FALSE(MakeOn(1, 1, {}, other) == one);
}

// A mask per layer and an order per head, blocks of 16 with a ragged last one, a row without any.
MaskTable MasksOfLayers(const WanConfig& model) {
  MaskFile file;
  const Lanes lanes{.batch = 1, .heads = model.heads};
  const BlockGrid grid{.q_tokens = 24, .kv_tokens = 24, .block_tokens = 16};
  Rng rng(3);
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    BlockMask mask(lanes, grid);
    for (int64_t lane = 0; lane < lanes.Count(); ++lane) {
      for (int64_t q = 0; q < 2; ++q) {
        for (int64_t kv = 0; kv < 2; ++kv) {
          if ((lane + layer + q > 0) && rng.Uniform() < 0.6) mask.Set(lane, q, kv);
        }
      }
    }
    file.layers.push_back(std::move(mask));
  }
  file.has_layer_axis = true;
  file.grid = TokenGrid{.frames = 2, .height = 3, .width = 4};
  for (int64_t head = 0; head < model.heads; ++head) {
    file.orders.push_back(kAxisOrders[static_cast<size_t>(head) % kAxisOrders.size()]);
  }
  return MaskTable({file}, {"test"});
}

TEST(Pipeline, MasksAndOrdersOfLayersGiveTheSameBitsOnAnyRanks) {
  PipelineOptions options;
  options.sparsity.attention = ParseAttention("mask:test");
  options.sparsity.masks = MasksOfLayers(ReadWanConfig(Folder().Config("transformer")));
  const Video one = MakeOn(1, 1, options);
  EXPECT_FALSE(one == MakeOn(1, 1));
  EXPECT_TRUE(MakeOn(2, 1, options) == one);
  EXPECT_TRUE(MakeOn(3, 2, options) == one);
  GenerationConfig unguided = Small();  // one pass: the mask as it is
  unguided.guidance = 1;
  EXPECT_TRUE(MakeOn(3, 1, options, unguided) == MakeOn(1, 1, options, unguided));
}

TEST(Pipeline, GoesOnFromAnyStep) {
  SoloCommunicator comm;
  std::vector<DenoiseState> states;
  DenoiseHooks hooks;
  hooks.after_step = [&](const DenoiseStep& step) {
    states.push_back({step.sampler->state(), {step.latents.begin(), step.latents.end()}});
  };
  const Video whole = Make(comm, 1, {}, Small(), hooks);
  ASSERT_EQ(states.size(), 3u);
  for (const DenoiseState& state : states) {
    DenoiseHooks again;
    again.resume = &state;
    EXPECT_TRUE(Make(comm, 1, {}, Small(), again) == whole) << state.sampler.step;
  }
}

// A run in rings whose plans follow changing masks as its clock says.
struct RingRun {
  std::vector<float> latents;
  PlanDecisions decisions;
  std::vector<SourceState> sparsity;  // after every step
  std::vector<DenoiseState> states;
};

// planning_seconds: of every plan, as the clock sees it. resume: after that step of `before`.
RingRun MakeInRings(double planning_seconds, const PlanDecisions* repeats = nullptr,
                    const RingRun* before = nullptr, size_t resume = 0) {
  PipelineOptions options;
  options.planner = "dbsp:1x3";
  options.sparsity.attention = ParseAttention("predict:mass=0.4,tail=none");
  options.sparsity.warm_up.dense_steps = 1;
  GenerationConfig config = Small();
  config.width = config.height = 96;
  config.frames = 61;  // 576 tokens: 9 blocks
  config.steps = 4;
  RingRun run;
  RunRanks(3, [&](Communicator& comm) {
    PipelineOptions mine = options;
    mine.plan_clock = [planning_seconds, now = 0.0]() mutable { return now += planning_seconds; };
    ThreadPool pool(1);
    Pipeline pipeline(Folder(), comm, pool, mine);
    const std::vector<std::string> prompts = {"a red circle", ""};
    const std::vector<PromptRows> rows = pipeline.Encode(prompts, config.text_rows);
    DenoiseHooks hooks;
    hooks.repeats = repeats;
    hooks.after_step = [&](const DenoiseStep& step) {
      run.sparsity.push_back(pipeline.SparsityState());
      run.states.push_back({step.sampler->state(), {step.latents.begin(), step.latents.end()}});
    };
    if (before != nullptr) {
      hooks.resume = &before->states[resume];
      hooks.resume_sparsity = &before->sparsity[resume];
    }
    std::vector<float> latents = pipeline.Denoise(config, rows[0], rows[1], hooks).latents;
    if (comm.rank() != 0) return;
    run.latents = std::move(latents);
    run.decisions = pipeline.SelfAttentionRuns()->PlansDecided();
  });
  return run;
}

// Which plans are kept follows the clock, and where rows are split plans decide bits: whoever
// repeats a run needs its decisions, also after an interruption.
TEST(Pipeline, RecordedLayoutsGiveTheSameBitsWhateverTheClockSays) {
  const RingRun patient = MakeInRings(1e9), eager = MakeInRings(0);
  EXPECT_NE(patient.decisions, eager.decisions);
  EXPECT_NE(patient.latents, eager.latents);
  const RingRun again = MakeInRings(0, &patient.decisions);
  EXPECT_EQ(again.latents, patient.latents);
  EXPECT_EQ(again.decisions, patient.decisions);
  EXPECT_EQ(MakeInRings(1e9, &eager.decisions).latents, eager.latents);
  const RingRun resumed = MakeInRings(0, nullptr, &again, 1);
  EXPECT_EQ(resumed.latents, patient.latents);
  EXPECT_EQ(resumed.decisions, patient.decisions);
  EXPECT_EQ(MakeInRings(1e9, nullptr, &patient, 2).latents, patient.latents);
}

TEST(Pipeline, PartsThatAreSharedAreLoadedOnce) {
  SoloCommunicator comm;
  PipelineOptions options;
  options.parts = std::make_shared<LoadedParts>();
  int64_t loaded = 0;
  options.on_load = [&](std::string_view part, int64_t, int64_t) {
    loaded += part == "transformer";
  };
  const Video first = Make(comm, 1, options, Small());
  EXPECT_GT(loaded, 0);
  loaded = 0;
  EXPECT_TRUE(Make(comm, 1, options, Small()) == first);
  EXPECT_EQ(loaded, 0);
}

TEST(Pipeline, EndsEarlyWhereAnyRankIsAsked) {
  std::atomic<bool> asked = false;
  RunRanks(3, [&](Communicator& comm) {
    PipelineOptions options;
    options.stop_requested = [&] { return comm.rank() == 1 && asked; };
    ThreadPool pool(1);
    Pipeline pipeline(Folder(), comm, pool, options);
    const std::vector<std::string> prompts = {"a star", ""};
    const std::vector<PromptRows> rows = pipeline.Encode(prompts, Small().text_rows);
    EXPECT_EQ(rows.size(), 2u);
    EXPECT_TRUE(pipeline.Load());
    DenoiseHooks hooks;
    int64_t steps = 0;
    hooks.after_step = [&](const DenoiseStep&) {
      ++steps;
      asked = true;
    };
    EXPECT_FALSE(pipeline.Denoise(Small(), rows[0], rows[1], hooks).finished);
    if (comm.rank() == 0) EXPECT_EQ(steps, 2);  // the step that was under way
    EXPECT_FALSE(pipeline.Load());
    EXPECT_TRUE(pipeline.Encode(prompts, Small().text_rows).empty());
  });
}

TEST(Pipeline, PreviewsFramesSideBySide) {
  SoloCommunicator comm;
  ThreadPool pool(1);
  Pipeline pipeline(Folder(), comm, pool, {});
  const std::vector<float> latents(16u * 2 * 6 * 8, 0.25f);
  const std::vector<float> both = pipeline.Preview(Small(), latents, 4);
  EXPECT_EQ(both.size(), 48u * 2 * 64 * 3);
  EXPECT_EQ(pipeline.Preview(Small(), latents, 1).size(), 48u * 64 * 3);
  // In the video's own colours: the second latent frame is not decoded as if it were the first.
  pipeline.Decode(Small(), latents, [&](int64_t frame, std::span<const float> rgb) {
    for (size_t y = 0; frame % 4 == 0 && y < 48; ++y) {
      const std::span<const float> row = rgb.subspan(y * 64 * 3, 64 * 3);
      const auto place = static_cast<size_t>(frame / 4);
      EXPECT_TRUE(std::equal(row.begin(), row.end(), both.begin() + (y * 2 + place) * 64 * 3))
          << "frame " << frame << ", row " << y;
    }
  });
}

}  // namespace
}  // namespace equitile

// Choices from tables that are made up, so that the right answer is known.
#include "equitile/search/choice/pattern_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "equitile/base/rng.h"
#include "equitile/search/choice/step_ranges.h"

namespace equitile {
namespace {

constexpr int64_t kLayers = 2, kHeads = 3, kSteps = 6, kPrompts = 2;

WanConfig SmallModel() {
  WanConfig model;
  model.layers = kLayers;
  model.heads = kHeads;
  model.head_dim = 32;
  model.ffn_dim = 64;
  return model;
}

Machine SomeMachine() {
  Machine machine;
  machine.peak_gflops = 150;
  machine.kernel = {
      {.head_dim = 32, .block = 64, .dtype = "f32", .gflops = 100, .row_seconds = 1e-6}};
  return machine;
}

struct World {
  explicit World(std::vector<HeadOption> all, int32_t ranks = 1, int64_t turns = 1)
      : options(std::move(all)),
        table({.prompts = kPrompts,
               .steps = kSteps,
               .layers = kLayers,
               .heads = kHeads,
               .options = std::ssize(options),
               .turns = turns}),
        speed(SomeMachine(), {.model = SmallModel(),
                              .grid = grid,
                              .block_tokens = 64,
                              .text_rows = 16,
                              .passes = 2,
                              .ranks = ranks}) {
    Rng rng(3);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      auto& heads = columns.emplace_back(kHeads);
      for (auto& head : heads) {
        for (int64_t block = 0; block < 16; ++block) head.push_back(rng.Below(1000));
      }
    }
    for (int64_t step = 0; step < kSteps; ++step)
      sigmas.push_back(0.9f - 0.15f * static_cast<float>(step));
    ForAll([&](const ErrorTable::Key& key) {
      table.MeanSquare(key.prompt, key.step, key.layer) = 2;
      table.Density(key) = options[static_cast<size_t>(key.option)].size;
    });
  }

  void ForAll(const std::function<void(const ErrorTable::Key&)>& visit) {
    for (int64_t p = 0; p < kPrompts; ++p) {
      for (int64_t s = 0; s < kSteps; ++s) {
        for (int64_t l = 0; l < kLayers; ++l) {
          for (int64_t h = 0; h < kHeads; ++h) {
            for (int64_t o = 0; o < std::ssize(options); ++o) visit({p, s, l, h, o});
          }
        }
      }
    }
  }

  PatternChoice Choose(const ChoiceDials& dials) {
    return ChoosePattern({.table = table,
                          .options = options,
                          .columns = columns,
                          .grid = grid,
                          .block_tokens = 64,
                          .dense_steps = 2,
                          .sigmas = sigmas,
                          .speed = speed},
                         dials);
  }

  TokenGrid grid{.frames = 4, .height = 16, .width = 16};  // 16 blocks
  std::vector<HeadOption> options;
  ErrorTable table;
  SpeedModel speed;
  std::vector<ColumnMasses> columns;
  std::vector<float> sigmas;
};

size_t OptionOf(const World& world, HeadMode mode, double size) {
  return static_cast<size_t>(
      std::ranges::find(world.options, HeadOption{.mode = mode, .size = size}) -
      world.options.begin());
}

TEST(PatternChoice, PaperTakesTheLeastLossOrStaysFull) {
  World world(PaperOptions(0.3));
  world.ForAll([&](const ErrorTable::Key& key) {
    double error = 5;  // every mode is bad ...
    if (key.option == 0) error = 0;
    if (key.head == 1 && key.option == 3) error = 0.01;  // ... but multi-diagonal for head 1 ...
    if (key.head == 2 && key.option == 1) error = 0.3;   // ... and skip and stripes for head 2
    if (key.head == 2 && key.option == 4) error = 0.2;
    world.table.Mse(key) = error;
  });
  ChoiceDials dials;
  dials.objective = Objective::kPaper;
  dials.step_ranges = StepRangesKind::kEach;
  const PatternChoice choice = world.Choose(dials);
  ASSERT_EQ(choice.ranges.size(), static_cast<size_t>(kSteps));
  for (const auto& range : choice.heads) {
    for (const auto& layer : range) {
      EXPECT_EQ(layer[0].option, 0u);
      EXPECT_EQ(layer[1].option, 3u);
      EXPECT_EQ(layer[2].option, 1u);  // 0.3 + 0 < 0.2 + 0.5 * 0.3
    }
  }
  EXPECT_DOUBLE_EQ(choice.step_agreement, 1);
  EXPECT_DOUBLE_EQ(choice.prompt_agreement, 1);
  EXPECT_GT(choice.speedup, 1);
  dials.loss.epsilon = 0.1;  // below every loss
  for (const auto& range : world.Choose(dials).heads) {
    for (const auto& layer : range) {
      for (const HeadChoice& head : layer) EXPECT_EQ(head.option, 0u);
    }
  }
}

// Errors are divided by the layer's mean square, over all its heads.
TEST(PatternChoice, RelativeErrorsArePartsOfTheLayer) {
  World world(PaperOptions(0.3));
  world.ForAll([&](const ErrorTable::Key& key) {
    world.table.Mse(key) = key.option == 0 ? 0 : 1.5;
    world.table.MeanSquare(key.prompt, key.step, key.layer) = key.layer == 0 ? 1 : 100;
  });
  ChoiceDials dials;
  dials.objective = Objective::kRelative;
  const PatternChoice choice = world.Choose(dials);
  ASSERT_EQ(choice.ranges.size(), 1u);
  EXPECT_EQ(choice.heads[0][0][0].option, 0u);
  EXPECT_EQ(choice.heads[0][1][0].option, 1u);
}

World BudgetWorld(int32_t ranks = 1, int64_t turns = 1) {
  World world(BudgetOptions(), ranks, turns);
  Rng rng(8);
  std::vector<double> head_scale;
  for (int64_t i = 0; i < kLayers * kHeads; ++i) head_scale.push_back(0.05 + rng.Uniform());
  world.ForAll([&](const ErrorTable::Key& key) {
    const HeadOption& option = world.options[static_cast<size_t>(key.option)];
    const double scale = head_scale[static_cast<size_t>(key.layer * kHeads + key.head)];
    double kept = option.IsFull() ? 1 : option.size;
    if (option.mode == HeadMode::kMean && option.kind == OptionKind::kMode) kept = 0.1;
    world.table.Mse(key) = scale * (1 - kept) * (1 - kept);
  });
  return world;
}

TEST(PatternChoice, BudgetsMeetTheirTargets) {
  World world = BudgetWorld();
  ChoiceDials dials;
  dials.target = TargetKind::kDensity;
  for (double density : {0.6, 0.3, 0.1}) {
    dials.target_value = density;
    const PatternChoice choice = world.Choose(dials);
    EXPECT_LE(choice.density, density);
    EXPECT_GT(choice.density, density - 0.1);
    EXPECT_TRUE(choice.reached);
  }
  dials.target = TargetKind::kError;
  dials.target_value = 0.05;
  const PatternChoice by_error = world.Choose(dials);
  EXPECT_LE(by_error.error, 0.05);
  EXPECT_NEAR(by_error.error, by_error.curve.back().error, 1e-12);
  EXPECT_NEAR(by_error.density, by_error.curve.back().density, 1e-12);
  dials.target = TargetKind::kSpeedup;
  dials.target_value = 1 + (world.speed.Speedup(2, kSteps, 0) - 1) / 2;
  EXPECT_GE(world.Choose(dials).speedup, dials.target_value - 1e-9);
}

// What was not looked at counts nowhere, whatever stands in the table.
TEST(PatternChoice, PromptsTakeTurns) {
  ChoiceDials dials;
  dials.target = TargetKind::kDensity;
  dials.target_value = 0.3;
  dials.step_ranges = StepRangesKind::kOne;
  const PatternChoice whole = BudgetWorld().Choose(dials);
  World world = BudgetWorld(1, 2);
  int64_t calls = 0;
  world.ForAll([&](const ErrorTable::Key& key) {
    if (world.table.Has(key.prompt, key.step)) {
      ++calls;
      return;
    }
    world.table.Mse(key) = 1e9;
    world.table.Density(key) = 77;
    world.table.MeanSquare(key.prompt, key.step, key.layer) = 1e-9;
  });
  EXPECT_EQ(2 * calls, kPrompts * kSteps * kLayers * kHeads * std::ssize(world.options));
  const PatternChoice choice = world.Choose(dials);
  for (size_t layer = 0; layer < kLayers; ++layer) {
    for (size_t head = 0; head < kHeads; ++head)
      EXPECT_EQ(choice.heads[0][layer][head].option, whole.heads[0][layer][head].option);
  }
  EXPECT_NEAR(choice.error, whole.error, 1e-9);
  // Up to heads that are as well off either way.
  EXPECT_NEAR(choice.step_agreement, whole.step_agreement, 0.2);
  EXPECT_NEAR(choice.prompt_agreement, whole.prompt_agreement, 0.2);
  dials.step_ranges = StepRangesKind::kEach;
  EXPECT_LE(world.Choose(dials).density, 0.3);
}

// Rows that were not looked at, and prompts whose turn it was not: of four prompts two are seen in
// each step, with errors e and 3 e, so that their mean is uncertain by e / sqrt(2).
TEST(PatternChoice, TheDeviationCountsRowsAndPrompts) {
  World world(PaperOptions(0.3));
  ErrorTable table({.prompts = 4,
                    .steps = kSteps,
                    .layers = kLayers,
                    .heads = kHeads,
                    .options = std::ssize(world.options),
                    .turns = 2});
  for (int64_t prompt = 0; prompt < 4; ++prompt) {
    for (int64_t step = 0; step < kSteps; ++step) {
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        table.MeanSquare(prompt, step, layer) = 1;
        for (int64_t head = 0; head < kHeads; ++head)
          table.Mse({prompt, step, layer, head, 1}) = prompt < 2 ? 0.1 : 0.3;
      }
    }
  }
  ChoiceDials dials;
  dials.objective = Objective::kPaper;
  dials.step_ranges = StepRangesKind::kOne;
  dials.loss = {.lambda = 10, .epsilon = 1};  // skip everything
  const auto chosen = [&] {
    return ChoosePattern({.table = table,
                          .options = world.options,
                          .columns = world.columns,
                          .grid = world.grid,
                          .block_tokens = 64,
                          .dense_steps = 2,
                          .sigmas = world.sigmas,
                          .speed = world.speed},
                         dials);
  };
  EXPECT_NEAR(chosen().error, 0.2, 1e-12);
  // Within a step: variance 0.02 of two, half of all: 0.02 / 2 / 2; the mean of the steps.
  EXPECT_NEAR(chosen().error_deviation, std::sqrt(0.005 / kSteps), 1e-12);
  for (int64_t step = 0; step < kSteps; ++step) table.Variance({0, step, 0, 0, 1}) = 0.72;
  // One head of all, the sum of two prompts: 0.72 / 4 / 36 more in each step.
  EXPECT_NEAR(chosen().error_deviation, std::sqrt(0.01 / kSteps), 1e-12);
}

TEST(PatternChoice, MassesAreSpentAsModesAre) {
  World world = BudgetWorld();
  ChoiceDials dials;
  dials.target = TargetKind::kDensity;
  dials.target_value = 0.7;
  const PatternChoice choice = world.Choose(dials);
  double observed = 0;
  for (const auto& layer : choice.heads[0]) {
    for (const HeadChoice& head : layer) {
      ASSERT_TRUE(head.observe && head.predict);
      const HeadOption& option = world.options[*head.observe];
      EXPECT_TRUE(option.IsFull() || option.kind == OptionKind::kObserve);
      observed += option.IsFull() ? 1 : option.size;  // the table says that masses are densities
    }
  }
  EXPECT_LE(observed / (kLayers * kHeads), 0.7);
}

TEST(PatternChoice, SplitsStepsWhereHeadsChange) {
  World world(BudgetOptions());
  const size_t diagonal = OptionOf(world, HeadMode::kDiagonal, 0.1);
  const size_t stripes = OptionOf(world, HeadMode::kStripes, 0.1);
  world.ForAll([&](const ErrorTable::Key& key) {
    const auto option = static_cast<size_t>(key.option);
    const bool is_good = option == 0 || option == (key.step < 2 ? diagonal : stripes);
    world.table.Mse(key) = is_good ? 0 : 1;
  });
  ChoiceDials dials;
  dials.target_value = 0.001;
  const PatternChoice choice = world.Choose(dials);
  ASSERT_EQ(choice.ranges, (std::vector<Range>{{0, 2}, {2, 6}}));
  EXPECT_EQ(choice.heads[0][0][0].option, diagonal);
  EXPECT_EQ(choice.heads[1][0][0].option, stripes);
  dials.step_ranges = StepRangesKind::kOne;
  EXPECT_EQ(world.Choose(dials).ranges.size(), 1u);
  EXPECT_GT(world.Choose(dials).density, choice.density);
}

// On ranks the seconds are those of the layer's plan; the target is still met.
TEST(PatternChoice, CountsSecondsOfPlansOnRanks) {
  World world = BudgetWorld(4);
  ChoiceDials dials;
  dials.target = TargetKind::kDensity;
  dials.target_value = 0.4;
  const PatternChoice choice = world.Choose(dials);
  EXPECT_LE(choice.density, 0.4);
  EXPECT_GT(choice.speedup, 1);
  for (size_t i = 1; i < choice.curve.size(); ++i)
    EXPECT_LE(choice.curve[i].density, choice.curve[i - 1].density);
}

TEST(StepRanges, NoiseLevelsMeetHalfWay) {
  const std::vector<float> sigmas = {0.8f, 0.6f, 0.4f, 0.2f};
  const auto ranges = SigmaRanges(std::vector<Range>{{0, 1}, {1, 4}}, sigmas);
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].high, 1);
  EXPECT_NEAR(ranges[0].low, 0.7, 1e-6);
  EXPECT_EQ(ranges[1].high, ranges[0].low);
  EXPECT_EQ(ranges[1].low, 0);
}

TEST(PatternChoice, FilesAreWhole) {
  World world = BudgetWorld();
  const Calibration calibration{.table = world.table,
                                .options = world.options,
                                .columns = world.columns,
                                .grid = world.grid,
                                .block_tokens = 64,
                                .dense_steps = 2,
                                .sigmas = world.sigmas,
                                .speed = world.speed};
  PatternFile file = ToPatternFile(calibration, ChoosePattern(calibration, {}));
  EXPECT_EQ(ParsePatternFile(PatternFileText(file), "test"), file);
}

}  // namespace
}  // namespace equitile

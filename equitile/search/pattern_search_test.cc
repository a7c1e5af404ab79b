// Whole searches on tiny-wan: the paper's choice against a direct, slow walk of its algorithm, and
// the same file on any number of ranks and after any interruption.
#include "equitile/search/pattern_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <set>

#include "equitile/comm/solo/solo.h"
#include "equitile/comm/threads/run_ranks.h"
#include "equitile/generate/agreement.h"
#include "equitile/generate/pipeline.h"
#include "equitile/io/json_value.h"
#include "equitile/kernel/rows/pooling.h"
#include "tests/in_repository.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

const std::string kModel = InRepository("tests/golden/tiny-wan");

Machine SomeMachine() {
  Machine machine;
  machine.peak_gflops = 150;
  machine.kernel = {
      {.head_dim = 32, .block = 64, .dtype = "f32", .gflops = 100, .row_seconds = 1e-6}};
  return machine;
}

// 3 x 10 x 11 tokens: six blocks, the last one ragged.
GenerateRequest RequestFor(const TempFolder& folder, const char* width = "176",
                           const char* height = "160") {
  const std::filesystem::path prompts =
      folder.Write("prompts.txt", "7\ta red circle\n8\ta blue square that moves\n");
  Recipe recipe;
  for (const auto& [key, text] :
       {std::pair("model", kModel.c_str()), std::pair("width", width), std::pair("height", height),
        std::pair("video_frames", "9"), std::pair("steps", "4"), std::pair("weights", "f32")}) {
    recipe.Set(key, text, Recipe::Source::kGiven);
  }
  RunOptions options;
  options.files = VideoFiles::kNone;
  options.prompts = prompts.string();
  GenerateRequest request = CheckedRequest(std::move(recipe), options);
  request.machine = SomeMachine();
  return request;
}

GenerateTask TaskOf(std::string prompt, uint64_t seed) {
  GenerateTask task;
  task.prompt = std::move(prompt);
  task.seed = seed;
  return task;
}

SearchOptions OptionsOf(Objective objective) {
  SearchOptions options;
  options.choice.objective = objective;
  options.choice.step_ranges =
      objective == Objective::kPaper ? StepRangesKind::kEach : StepRangesKind::kAuto;
  options.dense_steps = 1;
  return options;
}

// stop_after: steps of all passes, counted on rank 0; -1: none. stop_at: words of progress.
SearchOutcome SearchOn(int32_t ranks, const GenerateRequest& request, const SearchOptions& options,
                       int64_t stop_after = -1, std::string_view stop_at = "nothing",
                       std::vector<std::string>* lines = nullptr, const PatternFound& found = {}) {
  SearchOutcome outcome;
  std::atomic<int64_t> steps{0};
  std::atomic<bool> is_there{false};
  const SearchListener listener{.progress =
                                    [&](std::string_view line) {
                                      if (lines != nullptr) lines->emplace_back(line);
                                      if (line.find("step") != line.npos) ++steps;
                                      if (line.find(stop_at) != line.npos) is_there = true;
                                    },
                                .remark = [](std::string_view) {}};
  RunRanks(ranks, [&](Communicator& comm) {
    const Recipe agreed = AgreeOnRequest(comm, request);
    const auto stop = [&] { return is_there || (stop_after >= 0 && steps >= stop_after); };
    SearchOutcome mine = RunSearch(request, agreed, options, comm, 1,
                                   {.listener = listener, .stop_requested = stop}, found);
    if (comm.rank() == 0) outcome = std::move(mine);
  });
  return outcome;
}

TEST(PatternSearch, GivesTheSameFileOnAnyRanks) {
  const TempFolder folder;
  const GenerateRequest request = RequestFor(folder);
  for (Objective objective : {Objective::kPaper, Objective::kRelative, Objective::kBudget}) {
    SearchOptions options = OptionsOf(objective);
    options.choice.loss.epsilon = 0.4;
    options.choosing = {TaskOf("a green ring", 3)};
    const SearchOutcome one = SearchOn(1, request, options);
    for (int32_t ranks : {2, 3}) {
      const SearchOutcome other = SearchOn(ranks, request, options);
      EXPECT_EQ(PatternFileText(other.file), PatternFileText(one.file))
          << ObjectiveName(objective) << " on " << ranks;
      EXPECT_TRUE(std::ranges::equal(other.maps.Of(1, 1), one.maps.Of(1, 1)));
    }
  }
}

// Only a budget has them; what they are worth is seen in whole videos.
TEST(PatternSearch, ABudgetWeighsTheErrorsOfLayers) {
  const TempFolder folder;
  const GenerateRequest request = RequestFor(folder);
  SearchOptions options = OptionsOf(Objective::kBudget);
  options.checkpoint = folder / "search.ckpt";
  const SearchOutcome whole = SearchOn(1, request, options);
  ASSERT_EQ(whole.file.error_weights.size(), 1u);
  const std::vector<double>& weights = whole.file.error_weights.front().layers;
  ASSERT_EQ(weights.size(), 2u);
  EXPECT_NE(weights[0], weights[1]);
  EXPECT_LE(std::ranges::min(weights), 1);
  EXPECT_GE(std::ranges::max(weights), 1);
  const SearchOutcome stopped = SearchOn(2, request, options, -1, "weighing errors");
  EXPECT_NE(stopped.interrupted.find("while weighing errors"), std::string::npos);
  options.resumes = true;
  EXPECT_EQ(PatternFileText(SearchOn(3, request, options).file), PatternFileText(whole.file));
  EXPECT_TRUE(SearchOn(1, request, OptionsOf(Objective::kRelative)).file.error_weights.empty());
}

// Calls that are not looked at must not count as calls without errors: then everything could go.
TEST(PatternSearch, WithoutAnyErrorHeadsKeepAll) {
  const TempFolder folder;
  SearchOptions options = OptionsOf(Objective::kBudget);
  options.choice.target_value = 0;
  for (const bool looks_twice : {false, true}) {
    options.looks_twice = looks_twice;
    const SearchOutcome outcome = SearchOn(1, RequestFor(folder), options);
    EXPECT_EQ(outcome.file.density, 1);
    EXPECT_EQ(outcome.choice.error, 0);
    EXPECT_EQ(outcome.file.dials.at("turns"), 2);
  }
}

TEST(PatternSearch, EveryCandidateHasTheStepRangesAskedFor) {
  const TempFolder folder;
  SearchOptions options = OptionsOf(Objective::kBudget);
  options.choice.target = TargetKind::kDensity;
  options.choice.target_value = 0.4;
  for (const auto& [kind, ranges] :
       {std::pair(StepRangesKind::kEach, 3u), std::pair(StepRangesKind::kOne, 1u)}) {
    options.choice.step_ranges = kind;
    const SearchOutcome outcome = SearchOn(1, RequestFor(folder), options);
    EXPECT_EQ(outcome.file.ranges.size(), ranges);
    for (const SearchCandidate& candidate : outcome.candidates)
      EXPECT_EQ(candidate.name.find("one range"), std::string::npos) << candidate.name;
  }
}

// The second look measures more than the first at the same speed.
TEST(PatternSearch, AnErrorAskedForIsNotExceeded) {
  const TempFolder folder;
  SearchOptions options = OptionsOf(Objective::kBudget);
  for (const double error : {0.002, 0.005, 0.01, 0.02, 0.04}) {
    options.choice.target_value = error;
    const SearchOutcome outcome = SearchOn(1, RequestFor(folder), options);
    EXPECT_LE(outcome.choice.error, error * (1 + 1e-9)) << outcome.candidates.front().name;
    EXPECT_LT(outcome.file.density, 1);
  }
}

// Candidates are as fast as the first look; the one with the best videos is the file, and the
// header says what whole steps and videos made of it and of the first look.
TEST(PatternSearch, VideosMakeTheLastChoice) {
  const TempFolder folder;
  SearchOptions options = OptionsOf(Objective::kBudget);
  options.choice.target_value = 0.02;
  options.choosing = {TaskOf("a green ring", 3), TaskOf("a small star", 4)};
  options.validation = {TaskOf("a white cross", 5)};
  options.other_size = {.width = 96, .height = 80, .frames = 5};
  const SearchOutcome outcome = SearchOn(1, RequestFor(folder), options);
  ASSERT_GE(outcome.candidates.size(), 2u);
  const auto& dials = outcome.file.dials;
  const SearchCandidate& chosen = outcome.candidates.front();
  EXPECT_EQ(dials.at("velocity_error"), chosen.velocity_error);
  EXPECT_GT(chosen.velocity_error, 0);
  EXPECT_TRUE(dials.contains("first_look_velocity_error") || chosen.name == "first look");
  double first_speedup = 0;
  for (const SearchCandidate& candidate : outcome.candidates) {
    if (candidate.name == "first look") first_speedup = candidate.speedup;
    if (candidate.psnr) EXPECT_LE(*candidate.psnr, *chosen.psnr);
  }
  for (const SearchCandidate& candidate : outcome.candidates)
    EXPECT_GE(candidate.speedup, first_speedup - 1e-9) << candidate.name;
  ASSERT_TRUE(chosen.psnr.has_value());
  EXPECT_EQ(dials.at("choice_psnr"), *chosen.psnr);
  EXPECT_EQ(dials.at("choice_videos"), 2);
  EXPECT_GT(dials.at("flop_reduction"), 1);
  EXPECT_EQ(outcome.validation.psnr.size(), 3u);  // and both of its own
  EXPECT_EQ(outcome.other_size.psnr.size(), 1u);
  EXPECT_EQ(outcome.frames_of, "a white cross");
  ASSERT_EQ(outcome.frames.size(), 3u);
  EXPECT_EQ(outcome.frames[0].dense.width, 176);
}

// Every row of a call adds up to one whole mass, up to the rounding of its six blocks.
TEST(PatternSearch, MapsHoldAllOfTheAttention) {
  const TempFolder folder;
  SearchOptions options = OptionsOf(Objective::kRelative);
  const SearchOutcome outcome = SearchOn(2, RequestFor(folder), options);
  ASSERT_EQ(outcome.maps.cells(), 6);
  const auto map = outcome.maps.Of(1, 0);
  for (size_t q = 0; q < 6; ++q) {
    double sum = 0;
    for (size_t k = 0; k < 6; ++k) sum += static_cast<double>(map[q * 6 + k]);
    EXPECT_NEAR(sum / kWholeMass, 3 * 2, 1e-5);  // one prompt, three steps, two passes
  }
}

TEST(PatternSearch, GoesOnAfterAnyInterruption) {
  const TempFolder folder;
  const GenerateRequest request = RequestFor(folder);
  for (Objective objective : {Objective::kPaper, Objective::kBudget}) {
    SearchOptions options = OptionsOf(objective);
    options.checkpoint = folder / "search.ckpt";
    const std::string whole = PatternFileText(SearchOn(1, request, options).file);
    // In the passes, at their ends, and while candidates are compared.
    std::vector<int64_t> stops = {2, 5, 7, 10};
    if (objective == Objective::kBudget) stops = {2, 4, 7, 12, 14, 18};
    for (int64_t stop_after : stops) {
      options.resumes = false;
      const SearchOutcome stopped = SearchOn(2, request, options, stop_after);
      ASSERT_FALSE(stopped.interrupted.empty()) << stop_after;
      options.resumes = true;
      const SearchOutcome resumed = SearchOn(1, request, options);
      EXPECT_EQ(resumed.interrupted, "");
      EXPECT_EQ(PatternFileText(resumed.file), whole)
          << ObjectiveName(objective) << ", stopped after " << stop_after;
    }
    options.choice.objective =
        objective == Objective::kPaper ? Objective::kBudget : Objective::kPaper;
    EXPECT_THROW(SearchOn(1, request, options), InputError);
  }
}

// What whole steps and videos have shown is not found out again, and seconds add up.
TEST(PatternSearch, WhatFollowsThePassesGoesOnToo) {
  const TempFolder folder;
  const GenerateRequest request = RequestFor(folder, "128", "96");
  SearchOptions options = OptionsOf(Objective::kBudget);
  options.checkpoint = folder / "search.ckpt";
  options.choosing = {TaskOf("a green ring", 3), TaskOf("a small star", 4)};
  options.validation = {TaskOf("a white cross", 5)};
  std::vector<std::string> lines;
  const SearchOutcome whole = SearchOn(1, request, options, -1, "nothing", &lines);
  for (const char* stage : {"pass 3", "comparing candidates", "choosing by videos",
                            "weighing errors of layers", "validating"}) {
    EXPECT_TRUE(std::ranges::any_of(lines, [&](const std::string& line) {
      return line.starts_with(stage) && line.find("ETA") != line.npos;
    })) << stage;
  }
  struct Stop {
    const char* at;
    std::vector<const char*> not_again;
  };
  for (const auto& [at, not_again] :
       {Stop{"comparing candidates, step 3/", {"pass", "comparing candidates, step 1/"}},
        Stop{"choosing by videos, video 4/", {"comparing", "choosing by videos, video 1/"}},
        Stop{"validating, video 3/", {"choosing by", "weighing", "validating, video 1/"}}}) {
    std::optional<PatternFile> early;
    options.resumes = false;
    const SearchOutcome stopped =
        SearchOn(2, request, options, -1, at, nullptr,
                 [&](const SearchOutcome& outcome) { early = outcome.file; });
    EXPECT_FALSE(stopped.interrupted.empty()) << at;
    EXPECT_EQ(early.has_value(), at == std::string_view("validating, video 3/"));
    if (early) EXPECT_EQ(PatternFileText(*early), PatternFileText(whole.file));
    options.resumes = true;
    lines.clear();
    // On two ranks only the first knows what videos have shown.
    const SearchOutcome resumed = SearchOn(early ? 2 : 1, request, options, -1, "nothing", &lines);
    for (const char* line : not_again) {
      EXPECT_TRUE(std::ranges::none_of(
          lines, [&](const std::string& said) { return said.starts_with(line); }))
          << line << " after " << at;
    }
    EXPECT_EQ(PatternFileText(resumed.file), PatternFileText(whole.file));
    EXPECT_EQ(resumed.validation.psnr, whole.validation.psnr);
    ASSERT_EQ(resumed.frames.size(), 3u);
    EXPECT_EQ(resumed.frames[1].sparse.pixels, whole.frames[1].sparse.pixels);
    EXPECT_GT(resumed.dense_seconds, 0);
    EXPECT_GT(resumed.seconds, 0.3 * whole.seconds);  // of which the passes are the most
    if (early) EXPECT_EQ(resumed.seconds, stopped.seconds);
  }
}

// --- The paper's Algorithm 1, as plainly as it can be written, on one rank ---

class SlowWalk {
 public:
  SlowWalk(const GenerateRequest& request, LossDials dials)
      : request_(request),
        dials_(dials),
        model_(request.transformer),
        grid_(VideoGrid(model_, request.config)),
        tokens_(grid_.Tokens()) {}

  // [steps][layers][heads]
  std::vector<std::vector<std::vector<HeadPattern>>> Run() {
    Pipeline pipeline(request_.folder, comm_, pool_, {});
    const std::vector<std::string> prompts = {"", request_.tasks[0].prompt,
                                              request_.tasks[1].prompt};
    const std::vector<PromptRows> rows = pipeline.Encode(prompts, request_.config.text_rows);
    for (const PromptRows& row : rows)
      texts_.push_back(pipeline.Transformer().Text(row, request_.config.text_rows));
    columns_.assign(static_cast<size_t>(model_.layers * model_.heads), {});
    for (auto& head : columns_) head.assign(static_cast<size_t>(Blocks()), 0.0);
    for (const bool measures : {true, false}) {
      const auto attention = [&](const SelfAttentionCall& call) { Attend(call, measures); };
      const std::vector<const WanText*> texts = {&texts_[1], &texts_[0], &texts_[2], &texts_[0]};
      const std::vector<uint64_t> seeds = {7, 8};
      Denoise(pipeline.Transformer(), comm_,
              {.config = request_.config,
               .seeds = seeds,
               .texts = texts,
               .attention = attention,
               .cache = nullptr,
               .stop_requested = {},
               .after_step = {},
               .resume = nullptr});
    }
    return chosen_;
  }

 private:
  int64_t Blocks() const { return CeilDiv(tokens_, 64); }
  int64_t Items() const { return 4; }  // two prompts, two passes

  // softmax(q k / sqrt(d)) v in double over the keys that `sees` allows; 0 where there are none.
  // weights: [tokens], or null.
  void Row(int64_t lane, int64_t query, const std::vector<bool>& sees, double* out,
           std::vector<double>* weights) const {
    const int64_t dim = model_.head_dim;
    const float* q = q_.data() + (lane * tokens_ + query) * dim;
    std::vector<double> scores(static_cast<size_t>(tokens_));
    double most = -INFINITY, sum = 0;
    for (int64_t t = 0; t < tokens_; ++t) {
      double score = 0;
      for (int64_t i = 0; i < dim; ++i)
        score +=
            static_cast<double>(q[i]) * k_[static_cast<size_t>((lane * tokens_ + t) * dim + i)];
      scores[static_cast<size_t>(t)] = score / std::sqrt(static_cast<double>(dim));
      if (sees[static_cast<size_t>(t)]) most = std::max(most, scores[static_cast<size_t>(t)]);
    }
    std::fill_n(out, dim, 0.0);
    for (int64_t t = 0; t < tokens_; ++t) {
      double& score = scores[static_cast<size_t>(t)];
      score = sees[static_cast<size_t>(t)] ? std::exp(score - most) : 0.0;
      sum += score;
      for (int64_t i = 0; i < dim; ++i)
        out[i] += score * v_[static_cast<size_t>((lane * tokens_ + t) * dim + i)];
    }
    for (int64_t i = 0; i < dim && sum > 0; ++i) out[i] /= sum;
    if (weights == nullptr) return;
    for (double& score : scores) score /= sum;
    *weights = std::move(scores);
  }

  // Which keys a query sees under a pattern, by the definition of its mode on whole blocks.
  std::vector<bool> Sees(const HeadPattern& pattern, int64_t query) const {
    const LaneMasks masks = MakePatternMasks({&pattern, 1}, 1, grid_, 64);
    const TokenOrder order = masks.orders().empty() ? grid_.home : masks.orders()[0];
    const std::vector<int32_t> token_at = TokenAtPosition(grid_, order);
    std::vector<int64_t> position(static_cast<size_t>(tokens_));
    for (int64_t p = 0; p < tokens_; ++p)
      position[static_cast<size_t>(token_at[static_cast<size_t>(p)])] = p;
    std::vector<bool> sees(static_cast<size_t>(tokens_));
    for (int64_t t = 0; t < tokens_; ++t) {
      sees[static_cast<size_t>(t)] = masks.blocks().Get(
          0, position[static_cast<size_t>(query)] / 64, position[static_cast<size_t>(t)] / 64);
    }
    return sees;
  }

  // [tokens][head_dim] of one lane.
  std::vector<double> Output(int64_t lane, const HeadPattern& pattern,
                             std::vector<double>* columns = nullptr) const {
    std::vector<double> out(static_cast<size_t>(tokens_ * model_.head_dim)), weights;
    std::vector<bool> sees;
    for (int64_t t = 0; t < tokens_; ++t) {
      if (t % 64 == 0 || pattern.mode == HeadMode::kMultiDiagonal) sees = Sees(pattern, t);
      Row(lane, t, sees, out.data() + t * model_.head_dim, columns == nullptr ? nullptr : &weights);
      for (int64_t key = 0; columns != nullptr && key < tokens_; ++key)
        (*columns)[static_cast<size_t>(key / 64)] += weights[static_cast<size_t>(key)];
    }
    return out;
  }

  void Fetch(const SelfAttentionCall& call) {
    const auto floats = static_cast<size_t>(tokens_ * model_.head_dim);
    const RowProducer* producers[] = {&call.q, &call.k, &call.v};
    std::vector<float>* sides[] = {&q_, &k_, &v_};
    for (size_t side = 0; side < 3; ++side) {
      sides[side]->resize(static_cast<size_t>(Items() * model_.heads) * floats);
      for (int64_t lane = 0; lane < Items() * model_.heads; ++lane)
        (*producers[side])(lane, 0, tokens_,
                           sides[side]->data() + static_cast<size_t>(lane) * floats);
    }
  }

  void Attend(const SelfAttentionCall& call, bool measures) {
    Fetch(call);
    const bool is_dense = call.step < 1;
    if (!measures && !is_dense && call.layer == 0) chosen_.emplace_back();
    if (!measures && !is_dense) chosen_.back().emplace_back();
    for (int64_t head = 0; head < model_.heads; ++head) {
      HeadPattern pattern;
      if (!measures && !is_dense) pattern = Choose(call.layer, head);
      for (int64_t item = 0; item < Items(); ++item) {
        auto& columns = columns_[static_cast<size_t>(call.layer * model_.heads + head)];
        const auto out =
            Output(item * model_.heads + head, pattern, measures && !is_dense ? &columns : nullptr);
        for (int64_t t = 0; t < tokens_; ++t) {
          for (int64_t i = 0; i < model_.head_dim; ++i) {
            call.out[((item * tokens_ + t) * model_.heads + head) * model_.head_dim + i] =
                static_cast<float>(out[static_cast<size_t>(t * model_.head_dim + i)]);
          }
        }
      }
      if (!measures && !is_dense) chosen_.back().back().push_back(pattern);
    }
  }

  HeadPattern Choose(int64_t layer, int64_t head) const {
    const auto& columns = columns_[static_cast<size_t>(layer * model_.heads + head)];
    std::vector<uint64_t> masses;
    for (double mass : columns) masses.push_back(static_cast<uint64_t>(mass * 1e6));
    HeadPattern best;
    double least = INFINITY;
    for (HeadMode mode :
         {HeadMode::kSkip, HeadMode::kDiagonal, HeadMode::kMultiDiagonal, HeadMode::kStripes}) {
      HeadPattern pattern{.mode = mode, .size = 0, .columns = {}};
      if (mode == HeadMode::kStripes) pattern.columns = StripeColumns(masses, 0.3, grid_, 64);
      if (mode == HeadMode::kDiagonal || mode == HeadMode::kMultiDiagonal)
        pattern = BandOfDensity(mode, 0.3, grid_, 64);
      double squares = 0;
      for (int64_t item = 0; item < Items(); ++item) {
        const auto dense = Output(item * model_.heads + head, {});
        const auto sparse = Output(item * model_.heads + head, pattern);
        for (size_t i = 0; i < dense.size(); ++i)
          squares += (dense[i] - sparse[i]) * (dense[i] - sparse[i]);
      }
      const double mse = squares / static_cast<double>(Items() * tokens_ * model_.head_dim);
      const double sparsity = 1 - PatternDensity(pattern, grid_, 64);
      const double loss = mse + dials_.lambda * (1 - sparsity);
      if (loss < least) {
        least = loss;
        best = pattern;
      }
    }
    return least > dials_.epsilon ? HeadPattern{} : best;
  }

  const GenerateRequest& request_;
  LossDials dials_;
  SoloCommunicator comm_;
  ThreadPool pool_{1};
  WanConfig model_;
  TokenGrid grid_;
  int64_t tokens_;
  std::vector<WanText> texts_;
  std::vector<std::vector<double>> columns_;  // [layers * heads][blocks]
  std::vector<float> q_, k_, v_;              // [lanes][tokens][head_dim]
  std::vector<std::vector<std::vector<HeadPattern>>> chosen_;
};

TEST(PatternSearch, PaperChoosesAsADirectWalkOfItsAlgorithm) {
  const TempFolder folder;
  const GenerateRequest request = RequestFor(folder);
  SearchOptions options = OptionsOf(Objective::kPaper);
  std::set<HeadMode> modes;
  for (const LossDials& dials : {LossDials{0.01, 0.02}, LossDials{0.5, 0.2}}) {
    options.choice.loss = dials;
    const PatternFile file = SearchOn(1, request, options).file;
    const auto slow = SlowWalk(request, dials).Run();
    ASSERT_EQ(file.ranges.size(), slow.size());
    for (size_t step = 0; step < slow.size(); ++step) {
      for (size_t layer = 0; layer < slow[step].size(); ++layer) {
        for (size_t head = 0; head < slow[step][layer].size(); ++head) {
          const HeadPattern& got = file.ranges[step].layers[layer][head].pattern;
          EXPECT_EQ(got, slow[step][layer][head])
              << "step " << step << ", layer " << layer << ", head " << head << ": "
              << HeadModeName(got.mode) << ", not " << HeadModeName(slow[step][layer][head].mode);
          modes.insert(got.mode);
        }
      }
    }
  }
  EXPECT_GE(modes.size(), 3u);  // else the dials tell little apart
}

TEST(PatternSearch, ATargetOutOfReachIsRefusedBeforeTheWork) {
  const TempFolder folder;
  const GenerateRequest request = RequestFor(folder);
  SearchOptions options = OptionsOf(Objective::kBudget);
  options.choice.target = TargetKind::kSpeedup;
  options.choice.target_value = 50;
  EXPECT_THROW(SearchOn(1, request, options), InputError);
}

}  // namespace
}  // namespace equitile

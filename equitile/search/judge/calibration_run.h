// Prompts walked through the model, in passes, while a source of masks records what it sees behind
// the seam of self-attention: what all searches have in common. Interrupted, it goes on where it
// was.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/comm/communicator.h"
#include "equitile/generate/pipeline.h"
#include "equitile/generate/request.h"
#include "equitile/generate/run_checkpoint.h"
#include "equitile/kernel/linear/weight_type.h"
#include "equitile/plan/predict/machine.h"
#include "equitile/sparsity/source/mask_source.h"
#include "equitile/sparsity/source/source_context.h"

namespace equitile {

// Whoever listens, on rank 0.
struct SearchListener {
  std::function<void(std::string_view line)> progress;
  std::function<void(std::string_view line)> remark;
};

struct SearchTools {
  const SearchListener& listener;
  std::function<bool()> stop_requested;  // asked now and then, on every rank
};

// What sparse steps take of dense ones, roughly: for the time that is left.
constexpr double kSparsePart = 0.85;

struct CalibrationPass {
  int64_t prompts = 0;   // the first ones; 0: all
  int64_t group = 1;     // of them that are walked in lock-step; divides their number
  bool is_dense = true;  // steps that are not recorded are
  // What the prompts from `first` on attend to, and who records it.
  std::function<std::unique_ptr<MaskSource>(const SourceContext& context, int64_t first)> source;
  // Whether a step of these prompts is recorded; empty: all that are not dense are.
  std::function<bool(int64_t first, int64_t step)> records;
  // Rank 0, after each step of a prompt; empty: nothing.
  std::function<void(int64_t first, const DenoiseStep& step)> after_step;
  // Does for a call of the first pass what this pass will do for one, and forgets it; empty:
  // nothing. For the time that is left.
  std::function<void(const SelfAttentionCall& call, const SourceContext& context)> probe;
};

struct CalibrationSetup {
  int64_t dense_steps = 0;
  std::map<std::string, std::string> identity;  // of the search, beside the recipe's
  std::filesystem::path checkpoint;             // "": none
  bool resumes = false;
};

// Where a dense walk was, and where it went from there.
struct Waypoint {
  int64_t prompt = 0, step = 0;
  std::vector<float> latents, velocity;  // before the step, and in it; rank 0's
};

// What is recorded: in the checkpoint, and from there.
struct CalibrationState {
  std::function<SourceState()> get;
  std::function<void(const SourceState& parts)> set;
};

// One per rank; calls are collective.
class CalibrationRun {
 public:
  // All must outlive it.
  CalibrationRun(const GenerateRequest& request, const Recipe& agreed, CalibrationSetup setup,
                 Communicator& comm, ThreadPool& pool, const SearchTools& tools);

  // The checkpoint, if it goes on from one, then texts and weights. False: interrupted. Throws
  // InputError for a checkpoint of another search.
  bool Begin(const CalibrationState& state);
  // The request's, the checkpoint's, or measured now.
  const Machine& MeasuredMachine();
  // False: interrupted, where Where() says.
  bool Run(std::span<const CalibrationPass> passes, const CalibrationState& state);
  // Of whatever follows the passes, in dense steps: for the time that is left.
  void ExpectLater(double dense_steps) { steps_after_ = dense_steps; }
  // Collective: what is recorded now into the checkpoint, when the passes are over.
  void Save(const CalibrationState& state);

  // What the whole model makes of these masks: the squared error of the velocity as a part of its
  // square. The same on every rank.
  double VelocityError(const Waypoint& waypoint, std::unique_ptr<MaskSource> source);
  SourceContext OnePrompt() const { return ContextOf(1); }

  // Collective: whether anyone was asked to stop, `where` it then was.
  bool Stops(std::string_view where);
  bool Interrupted(std::string where);  // false, and Where() says so from now on
  std::string Where() const { return where_; }
  // For other pipelines of the same model.
  const std::shared_ptr<LoadedParts>& Parts() const { return parts_; }
  TokenGrid token_grid() const { return token_grid_; }
  const BlockGrid& grid() const { return grid_; }
  int64_t Prompts() const { return std::ssize(request_.tasks); }
  int64_t SparseSteps() const { return request_.config.steps - setup_.dense_steps; }
  std::vector<float> SparseSigmas() const;
  // Of as many steps as the prompts have, without recording; 0: not known.
  double DenseSeconds() const;
  double DenseStepSeconds() const;  // of one prompt
  // Since the search began, what it took before an interruption included.
  double Seconds() const { return seconds_before_ + comm_.Now() - began_; }
  void Say(std::string_view line) const;

 private:
  // Seconds of steps of one kind.
  struct StepClock {
    double seconds = 0;
    int64_t steps = 0;
    void Add(double more);
    double Mean(double otherwise) const;
  };
  // Of one pass: steps that are recorded, and those that are just walked.
  struct PassClock {
    StepClock walked, recorded;
    double probe_seconds = 0;  // of one step
  };

  bool Leads() const { return comm_.rank() == 0; }
  std::map<std::string, std::string> Identity() const;
  int64_t PromptsOf(const CalibrationPass& pass) const {
    return pass.prompts > 0 ? pass.prompts : Prompts();
  }
  int64_t Groups(const CalibrationPass& pass) const { return PromptsOf(pass) / pass.group; }
  bool Records(const CalibrationPass& pass, int64_t group, int64_t step) const;
  std::vector<const WanText*> TextsOf(Range tasks) const;
  void SkipFinished(std::span<const CalibrationPass> passes);
  SourceContext ContextOf(int64_t prompts) const;
  void SetSource(std::unique_ptr<MaskSource> source);
  // Denoises the videos of `tasks` in lock-step; false: stopped.
  bool Walk(Range tasks, SelfAttention attention, FunctionRef<bool()> stop,
            FunctionRef<void(const DenoiseStep& step)> after, const DenoiseState* resume);
  bool WalkGroup(std::span<const CalibrationPass> passes, const CalibrationState& state);
  void Probe(std::span<const CalibrationPass> passes, const SelfAttentionCall& call);
  void AfterStep(const DenoiseStep& step, std::span<const CalibrationPass> passes,
                 const CalibrationState& state);
  double SecondsLeft(int64_t steps_done, std::span<const CalibrationPass> passes) const;
  void Store(const DenoiseStep& step, const CalibrationPass& pass, const CalibrationState& state);
  void Write(const CalibrationState& state);  // last_, with what is recorded
  void PutTimes(SourceState& parts) const;
  void TakeTimes(const SourceState& parts);

  const GenerateRequest& request_;
  const Recipe& recipe_;
  CalibrationSetup setup_;
  Communicator& comm_;
  ThreadPool& pool_;
  const SearchTools& tools_;
  TokenGrid token_grid_;
  BlockGrid grid_;
  int64_t pass_ = 0, group_ = 0;         // under way
  std::optional<RunCheckpoint> resume_;  // rank 0: where the group under way goes on
  RunCheckpoint last_;                   // rank 0: the last one, read or written
  bool resumes_finished_group_ = false;
  std::optional<WeightType> weights_;  // the checkpoint's, else chosen by what is free
  std::optional<Machine> machine_;
  std::shared_ptr<LoadedParts> parts_ = std::make_shared<LoadedParts>();
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<WanText> texts_;  // negative prompt, then tasks
  std::unique_ptr<LayerAttention> attention_;
  std::string where_;
  std::vector<PassClock> clocks_;  // [passes]
  StepClock dense_;                // steps of one prompt that were walked densely, in any pass
  double probing_seconds_ = 0;     // in the step under way
  double steps_after_ = 0;         // the passes
  double began_ = 0, seconds_before_ = 0;
  double stored_at_ = 0;
};

}  // namespace equitile

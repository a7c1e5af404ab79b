#include "equitile/search/judge/calibration_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/base/version.h"
#include "equitile/exec/agree.h"
#include "equitile/exec/calibrate.h"
#include "equitile/generate/agreement.h"
#include "equitile/generate/memory_estimate.h"
#include "equitile/generate/video_maker.h"
#include "equitile/io/records/machine_file.h"
#include "equitile/search/state/checkpoint_numbers.h"
#include "equitile/search/state/later_stages.h"
#include "equitile/sparsity/source/share_state.h"

namespace equitile {
namespace {

constexpr double kCheckpointSeconds = 20;  // between two of them, within a prompt

}  // namespace

void CalibrationRun::StepClock::Add(double more) {
  seconds += more;
  ++steps;
}

double CalibrationRun::StepClock::Mean(double otherwise) const {
  return steps == 0 ? otherwise : seconds / static_cast<double>(steps);
}

CalibrationRun::CalibrationRun(const GenerateRequest& request, const Recipe& agreed,
                               CalibrationSetup setup, Communicator& comm, ThreadPool& pool,
                               const SearchTools& tools)
    : request_(request),
      recipe_(agreed),
      setup_(std::move(setup)),
      comm_(comm),
      pool_(pool),
      tools_(tools),
      token_grid_(VideoGrid(request.transformer, request.config)),
      grid_{.q_tokens = token_grid_.Tokens(), .kv_tokens = token_grid_.Tokens()},
      began_(comm.Now()) {}

void CalibrationRun::Say(std::string_view line) const {
  if (Leads()) tools_.listener.progress(line);
}

bool CalibrationRun::Interrupted(std::string where) {
  where_ = "interrupted " + std::move(where);
  return false;
}

std::vector<float> CalibrationRun::SparseSigmas() const {
  const GenerationConfig& config = request_.config;
  const Schedule schedule = MakeSchedule(config.sampler, config.steps, config.flow_shift);
  return {schedule.sigmas.begin() + setup_.dense_steps, schedule.sigmas.end() - 1};
}

double CalibrationRun::DenseStepSeconds() const {
  return dense_.Mean(clocks_.empty() ? 0 : clocks_.front().recorded.Mean(0));
}

double CalibrationRun::DenseSeconds() const {
  return DenseStepSeconds() * static_cast<double>(Prompts() * request_.config.steps);
}

// {seconds so far, dense steps, then of every pass: walked, recorded, probed}
void CalibrationRun::PutTimes(SourceState& parts) const {
  std::vector<double> times = {Seconds(), dense_.seconds, static_cast<double>(dense_.steps)};
  for (const PassClock& clock : clocks_) {
    for (const StepClock& steps : {clock.walked, clock.recorded}) {
      times.push_back(steps.seconds);
      times.push_back(static_cast<double>(steps.steps));
    }
    times.push_back(clock.probe_seconds);
  }
  PutNumbers(times, parts["times"]);
}

void CalibrationRun::TakeTimes(const SourceState& parts) {
  const auto times = TakeNumbers<double>(parts, "times");
  const auto steps = [&](size_t at) {
    return StepClock{times[at], static_cast<int64_t>(times[at + 1])};
  };
  if (times.size() < 3) return;
  seconds_before_ = times[0];
  dense_ = steps(1);
  for (size_t i = 3; i + 5 <= times.size(); i += 5) {
    clocks_.push_back(
        {.walked = steps(i), .recorded = steps(i + 2), .probe_seconds = times[i + 4]});
  }
}

// Everything that decides what is recorded.
std::map<std::string, std::string> CalibrationRun::Identity() const {
  auto identity = recipe_.BitsIdentity();
  if (weights_) identity["weights"] = WeightTypeName(*weights_);
  std::string prompts;
  for (const GenerateTask& task : request_.tasks)
    prompts += fmt::format("{}\t{}\n", task.seed, task.prompt);
  identity["prompts"] = std::move(prompts);
  identity["dense steps"] = fmt::format("{}", setup_.dense_steps);
  identity.insert(setup_.identity.begin(), setup_.identity.end());
  return identity;
}

bool CalibrationRun::Begin(const CalibrationState& state) {
  if (comm_.size() > 1 && !comm_.simulated()) pool_.SetPoll([this] { comm_.Poll(); });
  SourceState parts;
  if (Leads() && setup_.resumes) {
    resume_ = ReadRunCheckpoint(setup_.checkpoint);
    const std::string& weights = resume_->identity["weights"];
    if (!recipe_.IsSettled("weights") && weights != "auto") weights_ = ParseWeightType(weights);
    CheckSameRun(setup_.checkpoint, *resume_, Identity());
    last_ = *resume_;
    parts = std::move(resume_->sparsity);
    const int64_t over = resume_->state.sampler.step == request_.config.steps ? 1 : 0;
    PutNumbers(std::array{over}, parts["over"]);
  }
  parts = ShareState(comm_, std::move(parts));
  if (!parts.empty()) {
    const auto place = TakeNumbers<int64_t>(parts, "place", 2);
    pass_ = place[0];
    group_ = place[1];
    resumes_finished_group_ = TakeNumbers<int64_t>(parts, "over", 1)[0] != 0;
    const std::vector<std::byte>& text = parts["machine"];
    machine_ = ParseMachineFile({reinterpret_cast<const char*>(text.data()), text.size()},
                                "the checkpoint's machine");
    TakeTimes(parts);
    state.set(parts);
  }
  if (Leads() && !weights_) weights_ = ChooseWeights(request_, tools_.listener.remark);
  weights_ = AgreeOnWeights(comm_, weights_.value_or(WeightType::kF32));
  PipelineOptions options = PipelineOptionsOf(request_, *weights_);
  options.stop_requested = tools_.stop_requested;
  options.parts = parts_;
  pipeline_ = std::make_unique<Pipeline>(request_.folder, comm_, pool_, std::move(options));
  Say("loading");
  std::vector<std::string> prompts = {request_.config.negative_prompt};
  for (const GenerateTask& task : request_.tasks) prompts.push_back(task.prompt);
  const std::vector<PromptRows> rows = pipeline_->Encode(prompts, request_.config.text_rows);
  if (rows.empty() || !pipeline_->Load()) return Interrupted("while loading");
  for (const PromptRows& row : rows)
    texts_.push_back(pipeline_->Transformer().Text(row, request_.config.text_rows));
  return true;
}

const Machine& CalibrationRun::MeasuredMachine() {
  if (request_.machine) {
    machine_ = AgreeOnMachine(comm_, *request_.machine);
  } else if (!machine_) {
    Say("measuring this machine");
    machine_ = Calibrate(comm_, pool_,
                         {.head_dims = {request_.transformer.head_dim},
                          .blocks = {grid_.block_tokens},
                          .links = false});
  }
  return *machine_;
}

// A checkpoint of a group's last step means the next group.
void CalibrationRun::SkipFinished(std::span<const CalibrationPass> passes) {
  if (!std::exchange(resumes_finished_group_, false)) return;
  resume_.reset();
  if (++group_ < Groups(passes[static_cast<size_t>(pass_)])) return;
  group_ = 0;
  ++pass_;
}

bool CalibrationRun::Run(std::span<const CalibrationPass> passes, const CalibrationState& state) {
  clocks_.resize(passes.size());
  SkipFinished(passes);
  for (; pass_ < std::ssize(passes); ++pass_, group_ = 0) {
    const CalibrationPass& pass = passes[static_cast<size_t>(pass_)];
    attention_.reset();
    for (; group_ < Groups(pass); ++group_) {
      SetSource(pass.source(ContextOf(pass.group), group_ * pass.group));
      if (WalkGroup(passes, state)) continue;
      return Interrupted(fmt::format("in pass {} of {}, at prompt {} of {}", pass_ + 1,
                                     passes.size(), group_ * pass.group + 1, PromptsOf(pass)));
    }
  }
  return true;
}

SourceContext CalibrationRun::ContextOf(int64_t prompts) const {
  const WanConfig& model = request_.transformer;
  SourceContext context;
  context.comm = &comm_;
  context.pool = &pool_;
  context.lanes = {.batch = prompts * request_.config.Passes(), .heads = model.heads};
  context.grid = grid_;
  context.token_grid = token_grid_;
  context.head_dim = model.head_dim;
  context.layers = model.layers;
  return context;
}

// Plans serve all groups of a pass.
void CalibrationRun::SetSource(std::unique_ptr<MaskSource> source) {
  if (attention_ != nullptr) return attention_->Begin(std::move(source));
  LayerAttention::Options options;
  options.planner = recipe_.Text("planner");
  options.head_dim = request_.transformer.head_dim;
  options.layers = request_.transformer.layers;
  attention_ = std::make_unique<LayerAttention>(pipeline_->Attention(), std::move(source),
                                                std::move(options));
}

std::vector<const WanText*> CalibrationRun::TextsOf(Range tasks) const {
  std::vector<const WanText*> texts;
  for (int64_t task = tasks.begin; task < tasks.end; ++task) {
    texts.push_back(&texts_[static_cast<size_t>(task) + 1]);
    if (request_.config.Passes() == 2) texts.push_back(&texts_[0]);
  }
  return texts;
}

bool CalibrationRun::Walk(Range tasks, SelfAttention attention, FunctionRef<bool()> stop,
                          FunctionRef<void(const DenoiseStep& step)> after,
                          const DenoiseState* resume) {
  const std::vector<const WanText*> texts = TextsOf(tasks);
  std::vector<uint64_t> seeds;
  for (int64_t task = tasks.begin; task < tasks.end; ++task)
    seeds.push_back(request_.tasks[static_cast<size_t>(task)].seed);
  return Denoise(pipeline_->Transformer(), comm_,
                 {.config = request_.config,
                  .seeds = seeds,
                  .texts = texts,
                  .attention = attention,
                  .cache = nullptr,
                  .stop_requested = stop,
                  .after_step = after,
                  .resume = resume})
      .finished;
}

double CalibrationRun::VelocityError(const Waypoint& waypoint, std::unique_ptr<MaskSource> source) {
  SetSource(std::move(source));
  double error = 0;
  const auto after = [&](const DenoiseStep& step) {
    double square = 0;
    for (size_t i = 0; i < step.velocity.size(); ++i) {
      const double dense = waypoint.velocity[i], off = step.velocity[i] - dense;
      error += off * off;
      square += dense * dense;
    }
    error = square > 0 ? error / square : 0;
  };
  const auto attention = [&](const SelfAttentionCall& call) { (*attention_)(call); };
  const auto after_one = [] { return true; };
  // The velocity knows nothing of the sampler's history, and where the step leads is not asked.
  const std::vector<float> none(waypoint.latents.size());
  const DenoiseState state = {.sampler = {.step = waypoint.step,
                                          .corrected = none,
                                          .estimate = none,
                                          .older_estimate = none},
                              .latents = waypoint.latents};
  Walk({waypoint.prompt, waypoint.prompt + 1}, attention, after_one, after,
       Leads() ? &state : nullptr);
  comm_.Broadcast(std::as_writable_bytes(std::span(&error, 1)), 0);
  return error;
}

bool CalibrationRun::WalkGroup(std::span<const CalibrationPass> passes,
                               const CalibrationState& state) {
  const CalibrationPass& pass = passes[static_cast<size_t>(pass_)];
  const Range tasks = {group_ * pass.group, (group_ + 1) * pass.group};
  const auto attention = [&](const SelfAttentionCall& call) {
    (*attention_)(call);
    if (pass_ == 0 && group_ == 0 && call.step == setup_.dense_steps) Probe(passes, call);
  };
  const auto stop = [this] { return tools_.stop_requested && tools_.stop_requested(); };
  const auto after = [&](const DenoiseStep& step) { AfterStep(step, passes, state); };
  const std::optional<RunCheckpoint> resume = std::exchange(resume_, std::nullopt);
  return Walk(tasks, attention, stop, after, resume ? &resume->state : nullptr);
}

void CalibrationRun::Probe(std::span<const CalibrationPass> passes, const SelfAttentionCall& call) {
  for (size_t i = 1; i < passes.size(); ++i) {
    if (!passes[i].probe) continue;
    const double begin = comm_.Now();
    passes[i].probe(call, ContextOf(passes[0].group));
    const double seconds = comm_.Now() - begin;
    clocks_[i].probe_seconds += seconds;
    probing_seconds_ += seconds;
  }
}

void CalibrationRun::AfterStep(const DenoiseStep& step, std::span<const CalibrationPass> passes,
                               const CalibrationState& state) {
  PassClock& clock = clocks_[static_cast<size_t>(pass_)];
  const CalibrationPass& pass = passes[static_cast<size_t>(pass_)];
  const double seconds = step.seconds - std::exchange(probing_seconds_, 0);
  const bool is_recorded = Records(pass, group_, step.done - 1);
  (is_recorded ? clock.recorded : clock.walked).Add(seconds);
  if (pass.is_dense && !is_recorded) dense_.Add(seconds / static_cast<double>(pass.group));
  if (pass.after_step) pass.after_step(group_ * pass.group, step);
  const bool is_last = step.done == step.steps;
  if (step.stopping || is_last || comm_.Now() - stored_at_ > kCheckpointSeconds)
    Store(step, pass, state);
  Say(fmt::format("pass {}/{}, prompt {}/{}, step {}/{}{}", pass_ + 1, passes.size(),
                  group_ * pass.group + 1, PromptsOf(pass), step.done, step.steps,
                  EtaText(SecondsLeft(step.done, passes))));
}

bool CalibrationRun::Records(const CalibrationPass& pass, int64_t group, int64_t step) const {
  if (step < setup_.dense_steps) return false;
  return !pass.records || pass.records(group * pass.group, step);
}

double CalibrationRun::SecondsLeft(int64_t steps_done,
                                   std::span<const CalibrationPass> passes) const {
  const double first = DenseStepSeconds();
  double left = steps_after_ * first;
  for (int64_t i = pass_; i < std::ssize(passes); ++i) {
    const CalibrationPass& pass = passes[static_cast<size_t>(i)];
    const PassClock& clock = clocks_[static_cast<size_t>(i)];
    const auto prompts = static_cast<double>(pass.group);
    const double walked = clock.walked.Mean(prompts * first * (pass.is_dense ? 1 : kSparsePart));
    const double recorded = clock.recorded.Mean(walked + prompts * clock.probe_seconds);
    for (int64_t group = i == pass_ ? group_ : 0; group < Groups(pass); ++group) {
      const int64_t done = i == pass_ && group == group_ ? steps_done : 0;
      for (int64_t step = done; step < request_.config.steps; ++step)
        left += Records(pass, group, step) ? recorded : walked;
    }
  }
  return left;
}

bool CalibrationRun::Stops(std::string_view where) {
  uint64_t stops = tools_.stop_requested && tools_.stop_requested() ? 1 : 0;
  comm_.AllReduce(std::span(&stops, 1), Reduce::kMax);
  if (stops != 0) Interrupted(std::string(where));
  return stops != 0;
}

void CalibrationRun::Store(const DenoiseStep& step, const CalibrationPass& pass,
                           const CalibrationState& state) {
  if (setup_.checkpoint.empty()) return;
  const GenerationConfig& config = request_.config;
  last_.identity = Identity();
  last_.version = Version();
  last_.shape = {pass.group * request_.transformer.in_channels, config.LatentFrames(),
                 config.LatentHeight(), config.LatentWidth()};
  last_.state = {step.sampler->state(), {step.latents.begin(), step.latents.end()}};
  PutNumbers(std::array{pass_, group_}, last_.sparsity["place"]);
  Write(state);
}

void CalibrationRun::Save(const CalibrationState& state) {
  if (Leads() && !setup_.checkpoint.empty()) Write(state);
}

void CalibrationRun::Write(const CalibrationState& state) {
  std::vector<std::byte> place = std::move(last_.sparsity["place"]);
  last_.sparsity = state.get();
  last_.sparsity["place"] = std::move(place);
  const std::string machine = MachineFileText(*machine_);
  PutNumbers(std::span<const char>(machine), last_.sparsity["machine"]);
  PutTimes(last_.sparsity);
  try {
    WriteRunCheckpoint(setup_.checkpoint, last_);
  } catch (const Error& error) {  // the search may still come to its end
    tools_.listener.remark(fmt::format("no checkpoint: {}", error.what()));
  }
  stored_at_ = comm_.Now();
}

}  // namespace equitile

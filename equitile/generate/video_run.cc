#include "equitile/generate/video_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "equitile/base/duration.h"
#include "equitile/base/error.h"
#include "equitile/base/timer.h"
#include "equitile/base/version.h"
#include "equitile/generate/agreement.h"
#include "equitile/generate/attention_report.h"
#include "equitile/generate/compute_choice.h"
#include "equitile/generate/memory_estimate.h"
#include "equitile/generate/pipeline.h"
#include "equitile/generate/recorded_layouts.h"
#include "equitile/generate/run_checkpoint.h"
#include "equitile/generate/sidecar.h"
#include "equitile/generate/task_start.h"
#include "equitile/generate/time_estimate.h"
#include "equitile/generate/video_maker.h"
#include "equitile/io/arrays/safetensors.h"
#include "equitile/io/frames/numbered_png.h"
#include "equitile/io/frames/png.h"
#include "equitile/io/frames/video_writer.h"
#include "equitile/kernel/target.h"

namespace equitile {
namespace {

constexpr int64_t kDefaultCheckpointEvery = 5;
constexpr double kLongStepSeconds = 5.0;
constexpr int64_t kPreviewFrames = 4;

struct PartSeconds {
  double load = 0.0, text = 0.0, steps = 0.0, checkpoints = 0.0, decode = 0.0, write = 0.0;
  double Total() const { return load + text + steps + checkpoints + decode + write; }
};

// One rank's way through all tasks.
class RankRun {
 public:
  RankRun(const GenerateRequest& request, const Recipe& agreed, Communicator& comm, int threads,
          const RunTools& tools)
      : request_(request),
        comm_(comm),
        pool_(threads),
        tools_(tools),
        listener_(tools.listener),
        recipe_(agreed) {}

  RunOutcome Run() {
    // Layers and tiles may take longer than the watchdog waits.
    if (comm_.size() > 1 && !comm_.simulated()) pool_.SetPoll([this] { comm_.Poll(); });
    Begin();
    if (std::find(finished_.begin(), finished_.end(), 0U) == finished_.end()) return outcome_;
    for (const GenerateTask& task : request_.tasks) {
      if (!task.output.empty()) pipeline_->Vae();  // what is wrong with it is said before the steps
    }
    std::vector<std::string> prompts = {request_.config.negative_prompt};
    for (const GenerateTask& task : request_.tasks) prompts.push_back(task.prompt);
    const Stopwatch watch;
    const std::vector<PromptRows> rows = pipeline_->Encode(prompts, request_.config.text_rows);
    seconds_.text = watch.Seconds();
    for (size_t i = 0; i < request_.tasks.size(); ++i) {
      if (finished_[i] != 0) continue;
      if (!MakeVideo(i, rows)) break;
      seconds_ = {};
    }
    return outcome_;
  }

 private:
  bool Leads() const { return comm_.rank() == 0; }

  // What all ranks must know, as rank 0 found it on its disk. Collective.
  void Begin() {
    starts_.resize(request_.tasks.size());
    if (Leads()) starts_ = ReadStarts(request_, recipe_, listener_.remark);
    const WeightType weights = AgreeOnWeights(comm_, Leads() ? Weights() : WeightType::kF32);
    recipe_.Settle("weights", WeightTypeName(weights));
    for (const TaskStart& start : starts_) {
      outcome_.sidecars.push_back(start.record);
      finished_.push_back(start.record.is_null() ? 0 : 1);
      seeds_.push_back(start.seed);
    }
    if (Leads()) SayGain();
    comm_.Broadcast(std::as_writable_bytes(std::span(finished_)), 0);
    comm_.Broadcast(std::as_writable_bytes(std::span(seeds_)), 0);
    pipeline_ = std::make_unique<Pipeline>(request_.folder, comm_, pool_, Options(weights));
  }

  // What integers give on this machine, in one line.
  void SayGain() {
    const ComputeChoice compute = ComputeOf(recipe_);
    if (compute.attention == Compute::kF32 && compute.linear == Compute::kF32) return;
    const int64_t head_dim = request_.transformer.head_dim;
    listener_.remark(ComputeGainText(compute, request_.machine
                                                  ? GainOf(*request_.machine, head_dim, compute)
                                                  : MeasureGain(head_dim, compute)));
    if (const std::string stay = StayInt16Text(recipe_, request_.transformer); !stay.empty())
      listener_.remark(stay);
  }

  // As a checkpoint has them, else as is best.
  WeightType Weights() const {
    for (const TaskStart& start : starts_) {
      if (start.checkpoint) return ParseWeightType(start.checkpoint->identity.at("weights"));
    }
    return ChooseWeights(request_, listener_.remark);
  }

  PipelineOptions Options(WeightType weights) {
    PipelineOptions options = PipelineOptionsOf(request_, weights);
    // Measured rates are the recorded run's too, else its plans could not be made again.
    if (const auto layouts = FindLayouts(ForTask(recipe_, TaskOf(0)), comm_.size());
        layouts && layouts->rates && !options.machine) {
      options.machine = layouts->rates;
    }
    options.trace = tools_.trace;
    options.stop_requested = tools_.stop_requested;
    options.on_load = [this](std::string_view part, int64_t done, int64_t total) {
      const double loaded = static_cast<double>(done) / static_cast<double>(total);
      Say(fmt::format("loading {}", part), fmt::format("{:.0f} %", 100.0 * loaded), loaded);
    };
    return options;
  }

  // rank 0's task, with the seed that it begins or goes on with.
  GenerateTask TaskOf(size_t index) const {
    GenerateTask task = request_.tasks[index];
    task.seed = seeds_[index];
    return task;
  }

  void Say(std::string what, std::string count, double part, std::string detail = "") {
    if (!Leads()) return;
    if (IsOneOfSeveral() && video_ > 0) {
      what = fmt::format("video {}/{}: {}", video_, request_.tasks.size(), what);
    }
    listener_.progress({std::move(what), std::move(count), part, std::move(detail)});
  }
  void Say(std::string what, int64_t done, int64_t total, std::string detail = "") {
    Say(std::move(what), fmt::format("{}/{}", done, total),
        static_cast<double>(done) / static_cast<double>(total), std::move(detail));
  }

  bool IsOneOfSeveral() const { return request_.tasks.size() > 1; }

  // What an interrupted run says, and how it goes on. False.
  bool Interrupted(std::string_view where) {
    outcome_.interrupted = fmt::format("interrupted {}", where);
    outcome_.goes_on = stored_ || IsOneOfSeveral() || request_.options.resumes;
    if (!stored_) outcome_.resume = request_.options.resume;
    return false;
  }

  // rows: of the negative prompt, then of the tasks; none where it was interrupted before. False:
  // interrupted.
  bool MakeVideo(size_t index, const std::vector<PromptRows>& rows) {
    const GenerateTask task = TaskOf(index);
    const std::string name = task.Name().string();
    const std::string of = IsOneOfSeveral() ? " of " + name : "";
    stored_ = false;
    video_ = index + 1;
    const Stopwatch loading;
    if (rows.empty() || !pipeline_->Load()) {
      return Interrupted(IsOneOfSeveral() ? "before " + name : "while loading");
    }
    seconds_.load += loading.Seconds();
    GenerationConfig config = request_.config;
    config.seed = task.seed;
    const auto& resume = starts_[index].checkpoint;
    first_step_ = resume ? resume->state.sampler.step : 0;
    steps_ = resume ? resume->steps : std::vector<StepRecord>();
    first_record_ = steps_.size();
    DenoiseHooks hooks;
    hooks.after_step = [&](const DenoiseStep& step) { AfterStep(task, step); };
    hooks.resume = resume ? &resume->state : nullptr;
    hooks.resume_sparsity = resume ? &resume->sparsity : nullptr;
    hooks.watch = {.masks = task.masks,
                   .masses = task.masses,
                   .sampled_q_blocks = request_.options.measured_q_blocks};
    const auto recorded = FindLayouts(ForTask(recipe_, task), comm_.size());
    hooks.repeats = recorded ? &recorded->decisions : nullptr;
    Say("step", first_step_, config.steps);
    const Stopwatch watch;
    const DenoiseResult result = pipeline_->Denoise(config, rows[index + 1], rows[0], hooks);
    seconds_.steps = watch.Seconds() - seconds_.checkpoints;
    if (!result.finished) {
      const int64_t done = first_step_ + std::ssize(OwnSteps());
      return Interrupted(fmt::format("after step {} of {}{}", done, config.steps, of));
    }
    return Finish(index, task, result.latents) || Interrupted("while decoding the frames" + of);
  }

  void AfterStep(const GenerateTask& task, const DenoiseStep& step) {
    steps_.push_back({.seconds = step.seconds, .skipped = step.skipped});
    Say("step", step.done, step.steps, StepDetail(step));
    const int64_t asked = request_.options.checkpoint_every;
    const int64_t every = asked > 0 ? asked : kDefaultCheckpointEvery;
    const bool is_last = step.done == step.steps;
    const bool is_long = asked == 0 && step.seconds > kLongStepSeconds;
    // The last one is for a crash while frames are decoded.
    if (step.stopping || is_long || step.done % every == 0 || is_last) StoreCheckpoint(task, step);
    ShowPreview(task, step);
  }

  // 1.83 s/it  ETA 24 s  ρ 1.004 fractional
  std::string StepDetail(const DenoiseStep& step) const {
    double mean = 0.0;
    for (const StepRecord& own : OwnSteps()) mean += own.seconds;
    mean /= static_cast<double>(OwnSteps().size());
    std::string line =
        fmt::format("{:.2f} s/it  ETA {}", mean,
                    DurationText(mean * static_cast<double>(step.steps - step.done)));
    double rho = 0.0;
    const std::vector<LayerRecord> layers = pipeline_->SelfAttentionRuns()->LastOfLayers();
    for (const LayerRecord& layer : layers) rho = std::max(rho, layer.rho_after);
    if (!layers.empty() && layers.back().density < 1) {
      double density = 0;
      for (const LayerRecord& layer : layers) density += layer.density;
      line += fmt::format("  density {:.2f}", density / static_cast<double>(layers.size()));
    }
    if (comm_.size() > 1 && !layers.empty())
      line += fmt::format("  ρ {:.3f} {}", rho, layers.front().planner);
    return line;
  }

  Shape LatentShape() const {
    const GenerationConfig& config = request_.config;
    return {request_.transformer.in_channels, config.LatentFrames(), config.LatentHeight(),
            config.LatentWidth()};
  }

  void StoreCheckpoint(const GenerateTask& task, const DenoiseStep& step) {
    if (task.checkpoint.empty()) return;
    const TraceScope scope(tools_.trace, RunEvent::Kind::kWrite);
    const Stopwatch watch;
    RunCheckpoint checkpoint;
    checkpoint.identity = ForTask(recipe_, task).BitsIdentity();
    checkpoint.version = Version();
    checkpoint.shape = LatentShape();
    checkpoint.state = {step.sampler->state(), {step.latents.begin(), step.latents.end()}};
    checkpoint.sparsity = pipeline_->SparsityState();
    checkpoint.steps = steps_;
    try {
      WriteRunCheckpoint(task.checkpoint, checkpoint);
      stored_ = true;
      if (listener_.stored) listener_.stored();
    } catch (const Error& error) {
      // The video may still come to its end; the checkpoint before this one is as it was.
      listener_.remark(fmt::format("no checkpoint at step {}: {}", step.done, error.what()));
    }
    seconds_.checkpoints += watch.Seconds();
  }

  // Collective. False: interrupted.
  bool Finish(size_t index, const GenerateTask& task, const std::vector<float>& latents) {
    const Stopwatch watch;
    if (Leads() && !task.save_latents.empty()) {
      const TraceScope scope(tools_.trace, RunEvent::Kind::kWrite);
      SaveLatents(task, latents);
    }
    seconds_.write += watch.Seconds();
    if (!task.output.empty() && !WriteVideo(task, latents)) return false;
    if (!Leads()) return true;
    if (IsNumberedPng(task.output)) RemoveNumberedFrom(task.output, request_.config.frames);
    Recipe made = ForTask(recipe_, task);
    RecordLayouts({.decisions = pipeline_->SelfAttentionRuns()->PlansDecided(),
                   .rates = request_.machine ? std::nullopt : pipeline_->Rates()},
                  made);
    const Json sidecar = SidecarJson(made, RunJson(task, starts_[index]));
    if (!task.sidecar.empty()) WriteTextFile(task.sidecar, JsonText(sidecar, 2) + "\n");
    if (!task.perf_dump.empty()) {
      Json dump = sidecar["run"];
      dump["steps"] = StepsJson();
      dump["calls"] = AttentionCalls(*pipeline_->SelfAttentionRuns());
      WriteTextFile(task.perf_dump, JsonText(dump, 2) + "\n");
    }
    std::error_code ignored;
    if (!request_.options.keeps_checkpoint) std::filesystem::remove(task.checkpoint, ignored);
    std::filesystem::remove(task.preview, ignored);
    outcome_.sidecars[index] = sidecar;
    listener_.made(task, sidecar);
    return true;
  }

  // Frames go into the file as they come. False: interrupted, there is no file.
  bool WriteVideo(const GenerateTask& task, const std::vector<float>& latents) {
    const GenerationConfig& config = request_.config;
    const Stopwatch watch;
    double encoding = 0.0;
    std::unique_ptr<VideoWriter> writer;
    if (Leads()) writer = OpenVideo(task.output, request_.VideoOf(task));
    Say("decoding frame", 0, config.frames);
    std::vector<uint8_t> bytes(static_cast<size_t>(config.height * config.width) * 3);
    const auto add = [&](int64_t frame, std::span<const float> rgb) {
      const TraceScope scope(tools_.trace, RunEvent::Kind::kWrite);
      const Stopwatch encode;
      ToBytes(rgb, bytes);
      writer->Add(bytes);
      encoding += encode.Seconds();
      Say("decoding frame", frame + 1, config.frames);
    };
    if (!pipeline_->Decode(config, latents, add)) return false;
    const Stopwatch finish;
    if (Leads()) {
      const TraceScope scope(tools_.trace, RunEvent::Kind::kWrite);
      writer->Finish();
    }
    seconds_.write += encoding + finish.Seconds();
    seconds_.decode += watch.Seconds() - encoding - finish.Seconds();
    return true;
  }

  void ShowPreview(const GenerateTask& task, const DenoiseStep& step) {
    if (task.preview.empty() || step.done % request_.options.preview_every != 0) return;
    const std::vector<float> strip =
        pipeline_->Preview(request_.config, step.sampler->Estimate(), kPreviewFrames);
    RgbImage image{.height = request_.config.height, .width = 0, .pixels = {}};
    image.pixels.resize(strip.size());
    image.width = std::ssize(strip) / (3 * image.height);
    ToBytes(strip, image.pixels);
    try {
      WritePng(task.preview, image);
    } catch (const Error& error) {  // the video may still come to its end
      listener_.remark(fmt::format("no preview at step {}: {}", step.done, error.what()));
    }
  }

  void SaveLatents(const GenerateTask& task, const std::vector<float>& latents) {
    StoredTensor tensor;
    tensor.name = "latents";
    const Shape shape = LatentShape();
    for (int dim = 0; dim < shape.Rank(); ++dim) tensor.shape.push_back(shape[dim]);
    tensor.bytes = std::as_bytes(std::span(latents));
    WriteSafetensors(task.save_latents, std::span(&tensor, 1),
                     {{"prompt", task.prompt}, {"seed", fmt::format("{}", task.seed)}});
  }

  // Of this process, without those before it went on.
  std::span<const StepRecord> OwnSteps() const { return std::span(steps_).subspan(first_record_); }

  // [steps]: seconds beside the calls of layers; where a checkpoint had no records, of those after
  // it.
  Json StepsJson() const {
    const int64_t unknown = first_step_ - static_cast<int64_t>(first_record_);
    const std::vector<double> attention =
        AttentionSecondsOfSteps(*pipeline_->SelfAttentionRuns(), unknown + std::ssize(steps_));
    Json steps = Json::array();
    for (int64_t step = unknown; step < std::ssize(attention); ++step) {
      const StepRecord& record = steps_[static_cast<size_t>(step - unknown)];
      steps.push_back({{"step", step + 1},
                       {"skipped", record.skipped},
                       {"seconds", record.seconds},
                       {"rest_seconds", record.seconds - attention[static_cast<size_t>(step)]}});
    }
    return steps;
  }

  // What happened when the video was made: of steps all of them, also those before it went on.
  Json RunJson(const GenerateTask& task, const TaskStart& start) const {
    const LayerAttention& attention = *pipeline_->SelfAttentionRuns();
    Json step_seconds = Json::array(), skipped = Json::array();
    double rest = 0;
    for (const Json& step : StepsJson()) {
      step_seconds.push_back(step["seconds"]);
      if (step["skipped"]) skipped.push_back(step["step"]);
      rest += step["rest_seconds"].get<double>();
    }
    Json run = {{"ranks", comm_.size()},
                {"communicator", comm_.name()},
                {"threads_per_rank", pool_.Threads()},
                {"target", ActiveTargetName()},
                {"encoder", task.output.empty() ? "" : VideoEncoderName(task.output)},
                {"planner", recipe_.Text("planner")},
                {"wire", recipe_.Text("wire")},
                {"first_step", first_step_},
                {"layout", AttentionLayouts(attention)},
                {"sparsity", SparsitySummary(attention)},
                {"steps_skipped", std::move(skipped)},
                {"plans", PlansSummary(attention)},
                {"attention", AttentionTotals(attention)},
                {"rest_seconds", rest},
                {"seconds",
                 {{"load", seconds_.load},
                  {"text", seconds_.text},
                  {"steps", seconds_.steps},
                  {"checkpoints", seconds_.checkpoints},
                  {"decode", seconds_.decode},
                  {"write", seconds_.write},
                  {"total", seconds_.Total()}}},
                {"step_seconds", std::move(step_seconds)}};
    if (!start.target.empty()) run["target_before"] = start.target;
    return run;
  }

  const GenerateRequest& request_;
  Communicator& comm_;
  ThreadPool pool_;
  const RunTools& tools_;
  const RunListener& listener_;
  Recipe recipe_;
  std::vector<TaskStart> starts_;   // [tasks], of rank 0
  std::vector<uint64_t> finished_;  // [tasks]
  std::vector<uint64_t> seeds_;     // [tasks]
  std::unique_ptr<Pipeline> pipeline_;
  RunOutcome outcome_;
  PartSeconds seconds_;
  std::vector<StepRecord> steps_;  // that are done; with those of a checkpoint, where it has them
  size_t first_record_ = 0;        // of this process
  int64_t first_step_ = 0;         // the same, counted from the run's first
  size_t video_ = 0;               // that is being made, counted from 1; 0: none yet
  bool stored_ = false;  // there is a checkpoint of this task, written by this run; rank 0
};

}  // namespace

RunOutcome RunVideos(const GenerateRequest& request, const Recipe& agreed, Communicator& comm,
                     int threads, const RunTools& tools) {
  return RankRun(request, agreed, comm, threads, tools).Run();
}

}  // namespace equitile

#include "apps/generate/generate_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "apps/cli/interrupt.h"
#include "apps/cli/progress.h"
#include "apps/cli/shell_words.h"
#include "apps/cli/trace_output.h"
#include "apps/generate/generate_resume.h"
#include "apps/generate/memory_estimate.h"
#include "apps/generate/sidecar.h"
#include "apps/generate/video_maker.h"
#include "equitile/base/error.h"
#include "equitile/base/hash.h"
#include "equitile/base/timer.h"
#include "equitile/exec/agreement.h"
#include "equitile/io/json_value.h"
#include "equitile/io/numbered_png.h"
#include "equitile/io/png.h"
#include "equitile/io/safetensors.h"
#include "equitile/io/video_writer.h"
#include "equitile/kernel/target.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDefaultCheckpointEvery = 5;
constexpr double kLongStepSeconds = 5.0;
constexpr int64_t kPreviewFrames = 4;

// What rank 0 leaves for the process that started it.
struct Outcome {
  std::vector<Json> reports;  // [tasks]
  std::string interrupted;    // where the run ended early; "": it did not
  std::string resume;  // the flag that goes on from there; "": there is nothing to go on from
};

struct PartSeconds {
  double load = 0.0, text = 0.0, steps = 0.0, checkpoints = 0.0, decode = 0.0, write = 0.0;
  double Total() const { return load + text + steps + checkpoints + decode + write; }
};

std::string PartsText(const PartSeconds& s) {
  std::string text;
  for (const auto& [name, seconds] :
       {std::pair("loading", s.load), std::pair("text", s.text), std::pair("steps", s.steps),
        std::pair("checkpoints", s.checkpoints), std::pair("decoding", s.decode),
        std::pair("writing", s.write)}) {
    if (seconds >= 0.05)
      text += fmt::format("{}{} {:.1f}", text.empty() ? "" : ", ", name, seconds);
  }
  return text.empty() ? "" : fmt::format(" ({})", text);
}

// What self-attention of all layers and steps took on this rank.
Json AttentionReport(const LayerAttention& attention) {
  const RunStats totals = attention.Totals();
  return {{"runs", attention.records().size()},        {"seconds", totals.seconds},
          {"compute_seconds", totals.compute_seconds}, {"pack_seconds", totals.pack_seconds},
          {"wait_seconds", totals.wait_seconds},       {"plan_seconds", attention.PlanSeconds()},
          {"bytes_sent", totals.bytes_sent},           {"bytes_received", totals.bytes_received},
          {"buffer_bytes", totals.buffer_bytes}};
}

std::string TargetText() { return std::string(TargetName(ActiveTarget())); }

// One rank's way through all tasks.
class RankRun {
 public:
  RankRun(const GenerateRequest& request, const std::vector<TaskStart>& starts, DType weights,
          Communicator& comm, int threads, Outcome& outcome)
      : request_(request),
        starts_(starts),
        weights_(weights),
        comm_(comm),
        pool_(threads),
        outcome_(outcome),
        trace_(request.flags.trace.empty() ? nullptr : std::make_unique<Trace>(comm)),
        pipeline_(request.folder, comm, pool_, Options()) {}

  void Run() {
    // Layers and tiles may take longer than the watchdog waits.
    if (comm_.size() > 1 && !comm_.simulated()) pool_.SetPoll([this] { comm_.Poll(); });
    AgreeOnRequest();
    const std::vector<uint64_t> finished = Finished();
    if (std::find(finished.begin(), finished.end(), 0U) == finished.end()) return;
    for (const GenerateTask& task : request_.tasks) {
      if (!task.output.empty()) pipeline_.Vae();  // what is wrong with it is said before the steps
    }
    std::vector<std::string> prompts = {request_.config.negative_prompt};
    for (const GenerateTask& task : request_.tasks) prompts.push_back(task.prompt);
    const Stopwatch watch;
    const std::vector<PromptRows> rows = pipeline_.Encode(prompts, request_.config.text_rows);
    seconds_.text = watch.Seconds();
    for (size_t i = 0; i < request_.tasks.size(); ++i) {
      if (finished[i] != 0) continue;
      if (!MakeVideo(i, rows)) break;
      seconds_ = {};
    }
    if (trace_) WriteTrace(request_.flags.trace, comm_, *trace_);
  }

 private:
  bool Leads() const { return comm_.rank() == 0; }

  // [tasks]: what rank 0 found on its disk. Collective.
  std::vector<uint64_t> Finished() {
    std::vector<uint64_t> finished;
    for (const TaskStart& start : starts_) finished.push_back(start.record.is_null() ? 0 : 1);
    comm_.Broadcast(std::as_writable_bytes(std::span(finished)), 0);
    return finished;
  }

  // Ranks that were started with different flags or files would wait for each other for ever, or
  // make a video of two halves. A random seed is rank 0's. Collective.
  void AgreeOnRequest() {
    for (const GenerateTask& task : request_.tasks) seeds_.push_back(task.seed);
    std::map<std::string, uint64_t> things;
    const auto add = [&](const std::string& what, const auto&... values) {
      Hasher hasher;
      (hasher.Add(values), ...);
      things[what] = hasher.Digest();
    };
    for (const auto& [name, value] : request_.Parameters(request_.tasks[0], weights_)) {
      add(name, std::string_view(value));
    }
    things.erase("seed");
    add("number of prompts", request_.tasks.size());
    for (size_t i = 0; i < request_.tasks.size(); ++i) {
      const GenerateTask& task = request_.tasks[i];
      add(fmt::format("prompt {}", i + 1), std::string_view(task.prompt));
      add("kind of output", task.output.empty());
    }
    add("planner", std::string_view(request_.planner));
    add("--trace", request_.flags.trace.empty());
    CheckSame(comm_, things);
    comm_.Broadcast(std::as_writable_bytes(std::span(seeds_)), 0);
  }

  PipelineOptions Options() {
    PipelineOptions options = PipelineOptionsOf(request_, weights_);
    options.trace = trace_.get();
    options.stop_requested = InterruptWatch::Requested;
    options.on_load = [this](std::string_view part, int64_t done, int64_t total) {
      Say(fmt::format("loading {} {:.0f} %", part,
                      100.0 * static_cast<double>(done) / static_cast<double>(total)));
    };
    return options;
  }

  void Say(std::string_view line) {
    if (Leads()) progress_.Show(line);
  }

  bool IsOneOfSeveral() const { return request_.tasks.size() > 1; }

  // What an interrupted run says, and how it goes on. False.
  bool Interrupted(std::string_view where) {
    if (!Leads()) return false;
    const GenerateFlags& flags = request_.flags;
    outcome_.interrupted = fmt::format("interrupted {}", where);
    if (stored_ || IsOneOfSeveral() || flags.resumes) outcome_.resume = " --resume";
    if (!stored_ && !flags.resume.empty()) outcome_.resume += " " + QuotedWord(flags.resume);
    return false;
  }

  // rows: of the negative prompt, then of the tasks; none where it was interrupted before. False:
  // interrupted.
  bool MakeVideo(size_t index, const std::vector<PromptRows>& rows) {
    const GenerateTask& task = request_.tasks[index];
    const std::string name = task.Name().string();
    const std::string of = IsOneOfSeveral() ? " of " + name : "";
    stored_ = false;
    Say("loading");
    const Stopwatch loading;
    if (rows.empty() || !pipeline_.Load()) {
      return Interrupted(IsOneOfSeveral() ? "before " + name : "while loading");
    }
    seconds_.load += loading.Seconds();
    GenerationConfig config = request_.config;
    config.seed = seeds_[index];
    const auto& resume = starts_[index].checkpoint;
    first_step_ = resume ? resume->state.sampler.step : 0;
    step_seconds_.clear();
    DenoiseHooks hooks;
    hooks.after_step = [&](const DenoiseStep& step) { AfterStep(task, step); };
    hooks.resume = Leads() && resume ? &resume->state : nullptr;
    const Stopwatch watch;
    const DenoiseResult result = pipeline_.Denoise(config, rows[index + 1], rows[0], hooks);
    seconds_.steps = watch.Seconds() - seconds_.checkpoints;
    if (!result.finished) {
      const int64_t done = first_step_ + std::ssize(step_seconds_);
      return Interrupted(fmt::format("after step {} of {}{}", done, config.steps, of));
    }
    return Finish(index, result.latents) || Interrupted("while decoding the frames" + of);
  }

  void AfterStep(const GenerateTask& task, const DenoiseStep& step) {
    step_seconds_.push_back(step.seconds);
    Say(StepLine(step));
    const int64_t every = request_.flags.checkpoint_every.value_or(kDefaultCheckpointEvery);
    const bool is_last = step.done == step.steps;
    const bool is_long = !request_.flags.checkpoint_every && step.seconds > kLongStepSeconds;
    // The last one is for a crash while frames are decoded.
    if (step.stopping || is_long || step.done % every == 0 || is_last) StoreCheckpoint(task, step);
    ShowPreview(task, step);
  }

  // step 7/20  1.83 s/it  ETA 24s  ρ 1.004 fractional
  std::string StepLine(const DenoiseStep& step) const {
    double mean = 0.0;
    for (double seconds : step_seconds_) mean += seconds;
    mean /= static_cast<double>(step_seconds_.size());
    std::string line = fmt::format("step {}/{}  {:.2f} s/it  ETA {:.0f}s", step.done, step.steps,
                                   mean, mean * static_cast<double>(step.steps - step.done));
    double rho = 0.0;
    const std::vector<LayerRecord> layers = pipeline_.SelfAttentionRuns()->LastOfLayers();
    for (const LayerRecord& layer : layers) rho = std::max(rho, layer.rho_after);
    if (comm_.size() > 1) line += fmt::format("  ρ {:.3f} {}", rho, layers.front().planner);
    return line;
  }

  void StoreCheckpoint(const GenerateTask& task, const DenoiseStep& step) {
    if (task.checkpoint.empty()) return;
    const Stopwatch watch;
    RunCheckpoint checkpoint;
    checkpoint.parameters = request_.Parameters(task, weights_);
    checkpoint.notes = {{"version", EQUITILE_VERSION}, {"target", TargetText()}};
    checkpoint.shape = {request_.transformer.in_channels, request_.config.LatentFrames(),
                        request_.config.LatentHeight(), request_.config.LatentWidth()};
    checkpoint.state = {step.sampler->state(), {step.latents.begin(), step.latents.end()}};
    try {
      WriteRunCheckpoint(task.checkpoint, checkpoint);
      stored_ = true;
    } catch (const Error& error) {
      // The video may still come to its end; the checkpoint before this one is as it was.
      fmt::print(stderr, "equitile: no checkpoint at step {}: {}\n", step.done, error.what());
    }
    seconds_.checkpoints += watch.Seconds();
  }

  // Collective. False: interrupted.
  bool Finish(size_t index, const std::vector<float>& latents) {
    const GenerateTask& task = request_.tasks[index];
    const Stopwatch watch;
    if (Leads() && !task.save_latents.empty()) SaveLatents(task, latents);
    seconds_.write += watch.Seconds();
    if (!task.output.empty() && !WriteVideo(task, latents)) return false;
    if (!Leads()) return true;
    const Json report = Report(task);
    if (!task.sidecar.empty()) WriteTextFile(task.sidecar, report.dump(2) + "\n");
    if (!task.perf_dump.empty()) WriteTextFile(task.perf_dump, report["run"].dump(2) + "\n");
    if (!request_.flags.keep_checkpoint && !task.checkpoint.empty()) {
      std::error_code ignored;
      fs::remove(task.checkpoint, ignored);
    }
    outcome_.reports[index] = report;
    if (!request_.flags.json) PrintSummary(task);
    return true;
  }

  // Frames go into the file as they come. False: interrupted, there is no file.
  bool WriteVideo(const GenerateTask& task, const std::vector<float>& latents) {
    const Stopwatch watch;
    double encoding = 0.0;
    std::unique_ptr<VideoWriter> writer;
    if (Leads()) writer = OpenVideo(task.output, request_.VideoOf(task));
    std::vector<uint8_t> bytes(static_cast<size_t>(request_.config.height * request_.config.width) *
                               3);
    const auto add = [&](int64_t frame, std::span<const float> rgb) {
      const Stopwatch encode;
      ToBytes(rgb, bytes);
      writer->Add(bytes);
      encoding += encode.Seconds();
      Say(fmt::format("decoding frame {}/{}", frame + 1, request_.config.frames));
    };
    if (!pipeline_.Decode(request_.config, latents, add)) return false;
    const Stopwatch finish;
    if (Leads()) writer->Finish();
    seconds_.write += encoding + finish.Seconds();
    seconds_.decode += watch.Seconds() - encoding - finish.Seconds();
    return true;
  }

  void ShowPreview(const GenerateTask& task, const DenoiseStep& step) {
    const int64_t every = request_.flags.preview_every;
    if (task.preview.empty() || step.done % every != 0) return;
    const std::vector<float> strip =
        pipeline_.Preview(request_.config, step.sampler->Estimate(), kPreviewFrames);
    RgbImage image{.height = request_.config.height, .width = 0, .pixels = {}};
    image.pixels.resize(strip.size());
    image.width = std::ssize(strip) / (3 * image.height);
    ToBytes(strip, image.pixels);
    try {
      WritePng(task.preview, image);
    } catch (const Error& error) {  // the video may still come to its end
      fmt::print(stderr, "equitile: no preview at step {}: {}\n", step.done, error.what());
    }
  }

  void SaveLatents(const GenerateTask& task, const std::vector<float>& latents) {
    const GenerationConfig& config = request_.config;
    StoredTensor tensor;
    tensor.name = "latents";
    tensor.shape = {request_.transformer.in_channels, config.LatentFrames(), config.LatentHeight(),
                    config.LatentWidth()};
    tensor.bytes = std::as_bytes(std::span(latents));
    WriteSafetensors(task.save_latents, std::span(&tensor, 1),
                     {{"prompt", task.prompt}, {"seed", fmt::format("{}", task.seed)}});
  }

  Json Report(const GenerateTask& task) const {
    Json layouts = Json::array();
    const LayerAttention& attention = *pipeline_.SelfAttentionRuns();
    for (const LayerRecord& layer : attention.LastOfLayers()) {
      layouts.push_back(
          {{"planner", layer.planner}, {"rho", layer.rho_after}, {"density", layer.density}});
    }
    const BalanceReport balance = attention.Balance();
    Json seconds = {{"load", seconds_.load},     {"text", seconds_.text},
                    {"steps", seconds_.steps},   {"checkpoints", seconds_.checkpoints},
                    {"decode", seconds_.decode}, {"write", seconds_.write},
                    {"total", seconds_.Total()}};
    return {{"equitile", EQUITILE_VERSION},
            {"parameters", SidecarParameters(request_, task, weights_)},
            {"run",
             {{"ranks", comm_.size()},
              {"communicator", comm_.name()},
              {"threads_per_rank", pool_.Threads()},
              {"target", TargetText()},
              {"encoder", task.output.empty() ? "" : VideoEncoderName(task.output)},
              {"planner", request_.planner},
              {"wire", request_.wire},
              {"first_step", first_step_},
              {"layout", layouts},
              {"plans",
               {{"made", balance.made},
                {"kept", balance.kept},
                {"seconds", balance.seconds},
                {"rho_before", balance.rho_before},
                {"rho_after", balance.rho_after}}},
              {"attention", AttentionReport(attention)},
              {"seconds", seconds},
              {"step_seconds", step_seconds_}}}};
  }

  void PrintSummary(const GenerateTask& task) const {
    const GenerationConfig& config = request_.config;
    std::FILE* stream = task.fills_stdout ? stderr : stdout;
    fmt::print(stream, "{}: {} of {}x{}, {}, seed {}: {:.1f} s{}\n", task.Name().string(),
               Counted(config.frames, "frame"), config.width, config.height,
               Counted(config.steps, "step"), task.seed, seconds_.Total(), PartsText(seconds_));
    if (!request_.flags.verbose) return;
    const LayerAttention& attention = *pipeline_.SelfAttentionRuns();
    for (const LayerRecord& layer : attention.LastOfLayers()) {
      fmt::print(stderr, "layer {}: {}, rho {:.4f}, density {:.3f}\n", layer.layer, layer.planner,
                 layer.rho_after, layer.density);
    }
    const BalanceReport balance = attention.Balance();
    fmt::print(stderr, "plans: {} made, {} kept, {:.3f} s\n", balance.made, balance.kept,
               balance.seconds);
  }

  const GenerateRequest& request_;
  const std::vector<TaskStart>& starts_;
  DType weights_;
  Communicator& comm_;
  ThreadPool pool_;
  Outcome& outcome_;
  Progress progress_{""};
  PartSeconds seconds_;
  std::vector<double> step_seconds_;
  int64_t first_step_ = 0;
  std::vector<uint64_t> seeds_;   // [tasks]
  bool stored_ = false;           // there is a checkpoint of this task, written by this run; rank 0
  std::unique_ptr<Trace> trace_;  // before the pipeline, which writes into it
  Pipeline pipeline_;
};

}  // namespace

void RunGenerate(const GenerateRequest& request, const std::string& command) {
  CheckMemory(request);
  const std::vector<TaskStart> starts = ReadStarts(request);
  const DType weights = WeightsOf(request, starts);
  const InterruptWatch interrupts;
  Outcome outcome;
  for (const TaskStart& start : starts) outcome.reports.push_back(start.record);
  int32_t launched = 0;
  RunOnRanks(request.flags.ranks, [&](Communicator& comm, int threads) {
    if (comm.rank() == 0 && UnderLauncher()) launched = comm.size();
    RankRun(request, starts, AgreeOnWeights(comm, weights), comm, threads, outcome).Run();
  });
  if (!outcome.interrupted.empty()) {
    const std::string launcher = launched > 0 ? fmt::format("mpirun -n {} ", launched) : "";
    throw Error("{}; {} with: {}{}{}", outcome.interrupted,
                outcome.resume.empty() ? "begin again" : "go on", launcher, command,
                outcome.resume);
  }
  if (request.flags.json && IsFirstProcess()) {
    PrintJson(request.flags.prompts.empty() ? outcome.reports.front() : Json(outcome.reports));
  }
}

}  // namespace equitile

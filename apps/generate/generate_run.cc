#include "apps/generate/generate_run.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "apps/cli/interrupt.h"
#include "apps/cli/progress.h"
#include "apps/cli/shell_words.h"
#include "apps/cli/table.h"
#include "apps/cli/trace_output.h"
#include "equitile/base/duration.h"
#include "equitile/base/error.h"
#include "equitile/generate/agreement.h"
#include "equitile/generate/compute_choice.h"
#include "equitile/generate/memory_estimate.h"
#include "equitile/generate/video_run.h"
#include "equitile/kernel/target.h"

namespace equitile {
namespace {

bool IsStdout(const std::filesystem::path& path) {
  struct stat file {
  }, out{};
  return !path.empty() && stat(path.c_str(), &file) == 0 && fstat(STDOUT_FILENO, &out) == 0 &&
         file.st_dev == out.st_dev && file.st_ino == out.st_ino;
}

// With its video or latents: nothing else may be written there.
bool FillsStdout(const GenerateTask& task) {
  return IsStdout(task.output) || IsStdout(task.save_latents);
}

// Parts of some tenths of a second and more.
std::string PartsText(const Json& seconds) {
  std::string text;
  for (const auto& [key, name] :
       {std::pair("load", "loading"), std::pair("text", "text"), std::pair("steps", "steps"),
        std::pair("checkpoints", "checkpoints"), std::pair("decode", "decoding"),
        std::pair("write", "writing")}) {
    const double part = seconds[key].get<double>();
    if (part < 0.05) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, DurationText(part));
  }
  return text.empty() ? "" : fmt::format(" ({})", text);
}

void PrintSummary(const GenerationConfig& config, const GenerateTask& task, const Json& run) {
  fmt::print(FillsStdout(task) ? stderr : stdout, "{}: {} of {}x{}, {}, seed {}: {}{}\n",
             task.Name().string(), Counted(config.frames, "frame"), config.width, config.height,
             Counted(config.steps, "step"), task.seed,
             DurationText(run["seconds"]["total"].get<double>()), PartsText(run["seconds"]));
}

// What was left out, where something was, and how evenly ranks shared what was left.
void PrintSparsity(const Json& run, const std::string& attention, std::FILE* stream) {
  const Json& sparsity = run["sparsity"];
  if (!sparsity["sparse_density"].is_null()) {
    fmt::print(stream, "  {}: density {:.3f} from step {} on (sigma {:.3f})", attention,
               sparsity["sparse_density"].get<double>(),
               sparsity["first_sparse_step"].get<int64_t>(),
               sparsity["first_sparse_sigma"].get<double>());
    if (!sparsity["mass_held"].is_null())
      fmt::print(stream, ", mass held {:.4f} (5th percentile of lanes {:.4f})",
                 sparsity["mass_held"].get<double>(), sparsity["mass_held_p5"].get<double>());
    fmt::print(stream, "\n");
    const Json& plans = run["plans"];
    if (const auto ranks = run["ranks"].get<int64_t>(); ranks > 1)
      fmt::print(stream, "  {}: ρ {:.3f} ({:.3f} with the plans at hand), {} made, {} kept\n",
                 Counted(ranks, "rank"), plans["rho_after"].get<double>(),
                 plans["rho_before"].get<double>(), Counted(plans["made"].get<int64_t>(), "plan"),
                 plans["kept"].get<int64_t>());
  }
  if (!run["steps_skipped"].empty())
    fmt::print(stream, "  skipped {}\n", Counted(std::ssize(run["steps_skipped"]), "step"));
}

void PrintLayouts(const Json& run) {
  size_t layer = 0;
  for (const Json& layout : run["layout"]) {
    fmt::print(stderr, "layer {}: {}, rho {:.4f}, density {:.3f}\n", layer++,
               layout["planner"].get<std::string>(), layout["rho"].get<double>(),
               layout["density"].get<double>());
  }
  const Json& plans = run["plans"];
  fmt::print(stderr, "plans: {} made, {} kept, {:.3f} s\n", plans["made"].get<int64_t>(),
             plans["kept"].get<int64_t>(), plans["seconds"].get<double>());
  const Json& attention = run["attention"];
  fmt::print(stderr, "masks: {:.3f} s, {:.1f} MB sent; attention: {:.3f} s, {:.1f} MB sent\n",
             attention["mask_seconds"].get<double>(),
             1e-6 * attention["mask_bytes_sent"].get<double>(), attention["seconds"].get<double>(),
             1e-6 * attention["bytes_sent"].get<double>());
}

std::string ModelName(const CheckpointFolder& folder) {
  std::error_code ignored;
  const auto path = std::filesystem::absolute(folder.root(), ignored).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

// ", quality draft, compute int8", or what of it was asked for.
std::string ChoicesText(const Recipe& agreed, const std::string& quality) {
  std::string text = quality.empty() ? "" : ", quality " + quality;
  const ComputeChoice compute = ComputeOf(agreed);
  if (compute == ComputeChoice{}) return text;
  std::string word = ComputeChoiceText(compute);
  for (const char* all : {"int16", "int8"}) {
    if (compute == ParseComputeChoice(all)) word = all;
  }
  return text + ", compute " + word;
}

// wan-mini: 49 frames of 256x256, 20 steps, attention dense, 2 threads, avx2
std::string HeadLine(const GenerateRequest& request, const Recipe& agreed,
                     const std::string& quality, int32_t ranks, int threads) {
  const GenerationConfig& config = request.config;
  const size_t videos = request.tasks.size();
  return fmt::format(
      "{}: {}{} of {}x{}, {}{}, attention {}, {}{}, {}", ModelName(request.folder),
      videos > 1 ? fmt::format("{} videos of ", videos) : "", Counted(config.frames, "frame"),
      config.width, config.height, Counted(config.steps, "step"), ChoicesText(agreed, quality),
      agreed.Text("attention"), ranks > 1 ? fmt::format("{} of ", Counted(ranks, "rank")) : "",
      Counted(threads, "thread"), ActiveTargetName());
}

// launched: processes of a launcher; 0: there is none.
std::string HowToGoOn(int32_t launched, const std::string& command, bool goes_on,
                      const std::string& resume_file) {
  return fmt::format("{} with: {}{}{}{}", goes_on ? "go on" : "begin again",
                     launched > 0 ? fmt::format("mpirun -n {} ", launched) : "", command,
                     goes_on ? " --resume" : "",
                     resume_file.empty() ? "" : " " + QuotedWord(resume_file));
}

// What the run of one rank says.
class Listening {
 public:
  Listening(const GenerateFlags& flags, const GenerateRequest& request)
      : flags_(flags), request_(request) {
    listener_.progress = [this](const RunProgress& now) {
      progress_.ShowBar(now.what, now.count, now.part, now.detail);
    };
    listener_.remark = [this](std::string_view line) {
      progress_.Clear();
      Remark(line);
    };
    listener_.made = [this](const GenerateTask& task, const Json& sidecar) {
      progress_.Clear();
      if (flags_.json) return;
      PrintSummary(request_.config, task, sidecar["run"]);
      std::FILE* const stream = FillsStdout(task) ? stderr : stdout;
      PrintSparsity(sidecar["run"], request_.sparsity.attention.Text(), stream);
      if (flags_.verbose) PrintLayouts(sidecar["run"]);
    };
  }

  const RunListener& listener() const { return listener_; }

  // On rank 0: what is about to be made, and on what.
  void Head(const Recipe& agreed, int32_t ranks, int threads) {
    progress_.Head(HeadLine(request_, agreed, flags_.quality.name, ranks, threads));
  }

  // On rank 0 of a launcher's processes, which do not live long enough after Ctrl-C to end in
  // order: how to go on is said at once.
  void NoteInterrupts(int32_t launched, const std::string& command) {
    const auto note = [launched, command](bool goes_on, const std::string& resume_file) {
      InterruptWatch::SetNote("equitile: interrupted; " +
                              HowToGoOn(launched, command, goes_on, resume_file));
    };
    note(request_.options.resumes || request_.tasks.size() > 1, request_.options.resume);
    listener_.stored = [note] { note(true, ""); };
  }

 private:
  const GenerateFlags& flags_;
  const GenerateRequest& request_;
  Progress progress_{""};
  RunListener listener_;
};

void CheckStdout(const GenerateFlags& flags, const GenerateRequest& request) {
  for (const GenerateTask& task : request.tasks) {
    if (!flags.json || !FillsStdout(task)) continue;
    throw InputError("--json: standard output is where {} goes",
                     IsStdout(task.output) ? "the video" : "the latents");
  }
}

}  // namespace

void RunGenerate(const GenerateFlags& flags, const GenerateRequest& request,
                 const std::string& command) {
  CheckStdout(flags, request);
  const RanksRequest ranks = RanksOf(flags, request);
  if (request.options.ranks > 0) {
    CheckMemory(request, request.options.ranks, ThreadsPerRank(ranks, request.options.ranks));
  }
  const InterruptWatch interrupts;
  RunOutcome outcome;
  int32_t launched = 0;
  RunOnRanks(ranks, [&](Communicator& comm, int threads) {
    const Recipe agreed = AgreeOnRequest(comm, request);
    Listening listening(flags, request);
    if (comm.rank() == 0) {
      listening.Head(agreed, comm.size(), threads);
      if (UnderLauncher()) listening.NoteInterrupts(comm.size(), command);
    }
    std::optional<Trace> trace;
    if (!request.options.trace.empty()) trace.emplace(comm);
    RunOutcome mine = RunVideos(request, agreed, comm, threads,
                                {.listener = listening.listener(),
                                 .stop_requested = InterruptWatch::Requested,
                                 .trace = trace ? &*trace : nullptr});
    if (trace) WriteTrace(request.options.trace, comm, *trace);
    if (comm.rank() != 0) return;
    outcome = std::move(mine);
    if (UnderLauncher()) launched = comm.size();
  });
  if (!outcome.interrupted.empty()) {
    const std::string how = HowToGoOn(launched, command, outcome.goes_on, outcome.resume);
    const bool is_said = InterruptWatch::ShownNote().find(how) != std::string_view::npos;
    throw Error("{}{}{}", outcome.interrupted, is_said ? "" : "; ", is_said ? "" : how);
  }
  if (flags.json && IsFirstProcess()) {
    PrintJson(request.options.prompts.empty() ? outcome.sidecars.front() : Json(outcome.sidecars));
  }
}

}  // namespace equitile

#include "apps/compare/compare_prompts.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "apps/cli/command_line.h"
#include "apps/cli/flags.h"
#include "apps/cli/progress.h"
#include "apps/cli/shell_words.h"
#include "apps/cli/table.h"
#include "apps/generate/generate_flags.h"
#include "apps/generate/recipe_flags.h"
#include "equitile/base/error.h"
#include "equitile/generate/agreement.h"
#include "equitile/generate/memory_estimate.h"
#include "equitile/generate/prompts.h"
#include "equitile/generate/video_maker.h"
#include "equitile/quality/mean_interval.h"
#include "equitile/quality/video_comparison.h"

namespace equitile {
namespace {

constexpr std::array kNames = {"a", "b"};

struct CompareSide {
  size_t index = 0;
  std::string flags;
  GenerateRequest request;
  RanksRequest ranks;
  DType weights = DType::kF32;

  const char* name() const { return kNames[index]; }
};

// Flags of generate that make no sense here, told from flags that do not exist.
void RefuseOtherFlags(const CLI::App& known, const std::vector<std::string>& words) {
  GenerateFlags unused;
  CLI::App all;
  AddGenerateFlags(all, unused);
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    if (name.starts_with("-") && all.get_option_no_throw(name) != nullptr &&
        known.get_option_no_throw(name) == nullptr) {
      throw InputError("{}: not in a comparison, which has prompts of its own and writes no video",
                       name);
    }
  }
}

GenerateFlags ParseSide(const std::string& text) {
  GenerateFlags flags;
  CLI::App root("", "equitile");
  CLI::App& generate = *root.add_subcommand("generate");
  generate.set_help_flag("");
  AddMakingFlags(generate, flags);
  std::vector<std::string> words = SplitWords(text);
  RefuseOtherFlags(generate, words);
  words.insert(words.begin(), "generate");
  ParseArguments(root, std::move(words));
  if (!flags.config.empty()) ApplyConfig(flags.config, generate);
  if (!flags.recipe.IsSettled("seed")) {
    throw InputError("--seed {}: random seeds give videos that cannot be compared",
                     flags.recipe.Text("seed"));
  }
  if (flags.ranks.ranks && UnderLauncher()) {
    throw InputError("--ranks {}: under mpirun its processes are the ranks; leave it out",
                     *flags.ranks.ranks);
  }
  return flags;
}

CompareSide MakeSide(size_t index, const std::string& text, const std::string& prompts) {
  try {
    GenerateFlags flags = ParseSide(text);
    flags.options.prompts = prompts;
    flags.options.files = VideoFiles::kNone;
    CompareSide side{index, text, RequestOf(flags), flags.ranks, DType::kF32};
    side.weights = ChooseWeights(side.request, Remark);
    return side;
  } catch (const InputError& error) {
    throw InputError("--{}: {}", kNames[index], error.what());
  }
}

void CheckSameFrames(const GenerationConfig& a, const GenerationConfig& b) {
  if (a.frames == b.frames && a.width == b.width && a.height == b.height) return;
  throw InputError(
      "--a makes {} frames of {}x{}, --b {} frames of {}x{}; they must be the same to be compared",
      a.frames, a.width, a.height, b.frames, b.width, b.height);
}

bool SharesWeights(const CompareSide& a, const CompareSide& b) {
  std::error_code ignored;
  return a.weights == b.weights &&
         std::filesystem::equivalent(a.request.folder.root(), b.request.folder.root(), ignored);
}

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json ToJson(const std::optional<MeanInterval>& interval, size_t prompts) {
  if (!interval) return {{"mean", nullptr}, {"low", nullptr}, {"high", nullptr}, {"prompts", 0}};
  return {{"mean", interval->mean},
          {"low", OrNull(interval->low)},
          {"high", OrNull(interval->high)},
          {"prompts", prompts}};
}

std::string Words(const MeanInterval& interval, int decimals, const char* unit) {
  std::string text = fmt::format("{:.{}f}{}", interval.mean, decimals, unit);
  if (!interval.low) return text + "  (one prompt: no interval)";
  return text + fmt::format("  (95 %: {:.{}f} to {:.{}f})", *interval.low, decimals, *interval.high,
                            decimals);
}

// What one process collects, one video at a time.
class Report {
 public:
  Report(const CompareSide& a, const CompareSide& b, bool json) : a_(a), b_(b), json_(json) {}

  void Add(const CompareSide& side, size_t task, MadeVideo video) {
    made_[side.index] = std::move(video);
    if (made_[0] && made_[1]) Compare(task);
  }

  void Print() const {
    std::optional<MeanInterval> psnr;
    if (!psnrs_.empty()) psnr = MeanWithInterval(psnrs_);
    const MeanInterval ssim = MeanWithInterval(ssims_), speed = RatioWithInterval(speeds_);
    if (json_) {
      return PrintJson(Json{{"a", a_.flags},
                            {"b", b_.flags},
                            {"psnr", ToJson(psnr, psnrs_.size())},
                            {"ssim", ToJson(ssim, ssims_.size())},
                            {"speed", ToJson(speed, speeds_.size())},
                            {"prompts", prompts_}});
    }
    fmt::print("PSNR   {}\n", psnr ? Words(*psnr, 2, " dB") : "all frames are identical");
    fmt::print("SSIM   {}\n", Words(ssim, 4, ""));
    fmt::print("speed  {}, b over a\n", Words(speed, 3, ""));
  }

 private:
  void Compare(size_t task) {
    const MadeVideo a = *std::exchange(made_[0], {}), b = *std::exchange(made_[1], {});
    VideoComparison comparison;
    for (size_t f = 0; f < a.frames.size(); ++f) comparison.Add(a.frames[f], b.frames[f]);
    const std::optional<double> psnr = comparison.PsnrMean();
    if (psnr) psnrs_.push_back(*psnr);
    ssims_.push_back(comparison.SsimMean());
    speeds_.push_back(a.seconds / b.seconds);
    const GenerateTask& what = a_.request.tasks[task];
    prompts_.push_back({{"prompt", what.prompt},
                        {"seed_a", what.seed},
                        {"seed_b", b_.request.tasks[task].seed},
                        {"psnr_mean", OrNull(psnr)},
                        {"psnr_min", OrNull(comparison.PsnrMin())},
                        {"ssim_mean", comparison.SsimMean()},
                        {"frames", comparison.frames().size()},
                        {"identical_frames", comparison.IdenticalFrames()},
                        {"seconds_a", a.seconds},
                        {"seconds_b", b.seconds},
                        {"speed", speeds_.back()}});
    if (json_) return;
    fmt::print("{:>4}  PSNR {:>9}  SSIM {:.4f}  a {:.2f} s  b {:.2f} s  speed {:.3f}  {}\n",
               task + 1, psnr ? fmt::format("{:.2f} dB", *psnr) : "identical",
               comparison.SsimMean(), a.seconds, b.seconds, speeds_.back(), what.prompt);
    std::fflush(stdout);
  }

  const CompareSide& a_;
  const CompareSide& b_;
  bool json_;
  std::array<std::optional<MadeVideo>, 2> made_;
  std::vector<double> psnrs_, ssims_, speeds_;
  Json prompts_ = Json::array();
};

// One rank's part of one side.
class SideRun {
 public:
  SideRun(const CompareSide& side, Communicator& comm, int threads,
          std::shared_ptr<LoadedParts> parts, Report& report)
      : side_(side),
        comm_(comm),
        pool_(threads),
        report_(report),
        maker_(side.request, Options(std::move(parts)), comm, pool_,
               [this](std::string_view line) { Say(line); }) {}

  void Prepare() { maker_.Prepare(); }

  void Make(size_t task) {
    now_ = fmt::format("prompt {}/{}, {}: ", task + 1, side_.request.tasks.size(), side_.name());
    if (comm_.rank() == 0) progress_.emplace("");
    MadeVideo video = maker_.Make(task);
    progress_.reset();
    if (comm_.rank() == 0) report_.Add(side_, task, std::move(video));
  }

 private:
  PipelineOptions Options(std::shared_ptr<LoadedParts> parts) {
    PipelineOptions options =
        PipelineOptionsOf(side_.request, AgreeOnWeights(comm_, side_.weights));
    options.parts = std::move(parts);
    return options;
  }

  void Say(std::string_view line) {
    if (progress_) progress_->Show(now_ + std::string(line));
  }

  const CompareSide& side_;
  Communicator& comm_;
  ThreadPool pool_;
  Report& report_;
  std::optional<Progress> progress_;
  std::string now_;
  VideoMaker maker_;
};

// Who goes first changes from prompt to prompt.
bool GoesFirst(const CompareSide& side, size_t task) {
  return (task % 2 == 0) == (side.index == 0);
}

// Both sides on the launcher's ranks.
void RunUnderLauncher(const std::array<CompareSide, 2>& sides, Report& report) {
  RunOnRanks(sides[0].ranks, [&](Communicator& comm, int) {
    for (const CompareSide& side : sides) {
      AgreeOnRequest(comm, side.request, {}, fmt::format(" of --{}", side.name()));
    }
    std::vector<std::unique_ptr<SideRun>> runs;
    const auto shared = std::make_shared<LoadedParts>();
    for (const CompareSide& side : sides) {
      const bool shares = side.index == 0 || SharesWeights(sides[0], sides[1]);
      runs.push_back(std::make_unique<SideRun>(side, comm, ThreadsPerRank(side.ranks, 1),
                                               shares ? shared : std::make_shared<LoadedParts>(),
                                               report));
      runs.back()->Prepare();
    }
    for (size_t task = 0; task < sides[0].request.tasks.size(); ++task) {
      const size_t first = GoesFirst(sides[0], task) ? 0 : 1;
      runs[first]->Make(task);
      runs[1 - first]->Make(task);
    }
  });
}

// Two sides with ranks of their own in one process take turns.
class Turns {
 public:
  // Gives signs of life while it waits. Throws where the other side has failed.
  void Await(int64_t turn, Communicator& comm) {
    std::unique_lock lock(mutex_);
    while (turn_ != turn && !failed_) {
      changed_.wait_for(lock, std::chrono::milliseconds(100));
      comm.Poll();
    }
    if (failed_) throw Error("the other side has failed");
  }

  void Pass() {
    const std::lock_guard lock(mutex_);
    ++turn_;
    changed_.notify_all();
  }

  // Keeps the first.
  void Fail(std::exception_ptr why) {
    const std::lock_guard lock(mutex_);
    if (!failed_) failed_ = std::move(why);
    changed_.notify_all();
  }

  void RethrowFailure() const {
    if (failed_) std::rethrow_exception(failed_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t turn_ = 0;
  std::exception_ptr failed_;
};

void RunSide(const CompareSide& side, const std::shared_ptr<LoadedParts>& parts, bool shares,
             Turns& turns, Report& report) {
  RunOnRanks(side.ranks, [&](Communicator& comm, int threads) {
    const bool leads = comm.rank() == 0;
    SideRun run(side, comm, threads, shares || leads ? parts : std::make_shared<LoadedParts>(),
                report);
    const auto in_turn = [&](int64_t turn, auto&& work) {
      if (leads) turns.Await(turn, comm);
      comm.Barrier();
      work();
      comm.Barrier();
      if (leads) turns.Pass();
    };
    in_turn(static_cast<int64_t>(side.index), [&] { run.Prepare(); });
    for (size_t task = 0; task < side.request.tasks.size(); ++task) {
      const auto turn = static_cast<int64_t>(2 + 2 * task + (GoesFirst(side, task) ? 0 : 1));
      in_turn(turn, [&] { run.Make(task); });
    }
  });
}

void RunHere(const std::array<CompareSide, 2>& sides, Report& report) {
  const auto parts = std::make_shared<LoadedParts>();
  const bool shares = SharesWeights(sides[0], sides[1]);
  Turns turns;
  const auto run = [&](const CompareSide& side) {
    try {
      // Ranks of the second side read what the first side's rank 0 has loaded in its turns before.
      const bool second = side.index == 1;
      RunSide(side, second && !shares ? std::make_shared<LoadedParts>() : parts, second && shares,
              turns, report);
    } catch (...) {
      turns.Fail(std::current_exception());
    }
  };
  std::thread other([&] { run(sides[1]); });
  run(sides[0]);
  other.join();
  turns.RethrowFailure();
}

}  // namespace

void RunComparePrompts(const ComparePrompts& options) {
  ReadPrompts(options.prompts);  // what is wrong with it is neither side's fault
  const std::array<CompareSide, 2> sides = {MakeSide(0, options.a, options.prompts),
                                            MakeSide(1, options.b, options.prompts)};
  CheckSameFrames(sides[0].request.config, sides[1].request.config);
  Report report(sides[0], sides[1], options.json);
  if (UnderLauncher()) {
    RunUnderLauncher(sides, report);
  } else {
    RunHere(sides, report);
  }
  if (IsFirstProcess()) report.Print();
}

}  // namespace equitile

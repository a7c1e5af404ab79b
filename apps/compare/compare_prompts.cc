#include "apps/compare/compare_prompts.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "apps/cli/interrupt.h"
#include "apps/cli/progress.h"
#include "apps/cli/ranks.h"
#include "apps/compare/compare_report.h"
#include "apps/compare/compare_side.h"
#include "equitile/base/error.h"
#include "equitile/generate/agreement.h"
#include "equitile/generate/prompts.h"
#include "equitile/generate/video_maker.h"
#include "equitile/io/atomic_write.h"

namespace equitile {
namespace {

// One rank's part of one side.
class SideRun {
 public:
  SideRun(const CompareSide& side, Communicator& comm, int threads,
          std::shared_ptr<LoadedParts> parts, CompareReport& report)
      : side_(side),
        comm_(comm),
        pool_(threads),
        report_(report),
        maker_(
            side.request, Options(std::move(parts)), comm, pool_,
            [this](std::string_view line) { Say(line); }, {}, InterruptWatch::Requested) {}

  void Prepare() { maker_.Prepare(); }

  void Make(size_t task) {
    now_ = fmt::format("prompt {}/{}, {}: ", task + 1, side_.request.tasks.size(), side_.name);
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
  CompareReport& report_;
  std::optional<Progress> progress_;
  std::string now_;
  VideoMaker maker_;
};

using Sides = std::vector<CompareSide>;

// The sides in the order of a task: each task begins with another one.
size_t SideInTurn(const Sides& sides, size_t task, size_t place) {
  return (task + place) % sides.size();
}

// All sides on the launcher's ranks.
void RunUnderLauncher(const Sides& sides, CompareReport& report) {
  RunOnRanks(sides[0].ranks, [&](Communicator& comm, int) {
    for (const CompareSide& side : sides) {
      AgreeOnRequest(comm, side.request, {}, fmt::format(" of --{}", side.name));
    }
    std::vector<std::unique_ptr<SideRun>> runs;
    std::vector<std::shared_ptr<LoadedParts>> parts;
    for (const CompareSide& side : sides) {
      const size_t owner = OwnerOfWeights(sides, side.index);
      parts.push_back(owner < side.index ? parts[owner] : std::make_shared<LoadedParts>());
      runs.push_back(std::make_unique<SideRun>(side, comm, ThreadsPerRank(side.ranks, 1),
                                               parts.back(), report));
      runs.back()->Prepare();
    }
    for (size_t task = 0; task < sides[0].request.tasks.size(); ++task) {
      for (size_t place = 0; place < sides.size(); ++place) {
        runs[SideInTurn(sides, task, place)]->Make(task);
      }
    }
  });
}

// Sides with ranks of their own in one process take turns.
class Turns {
 public:
  // Gives signs of life while it waits. Throws where another side has failed.
  void Await(int64_t turn, Communicator& comm) {
    std::unique_lock lock(mutex_);
    while (turn_ != turn && !failed_) {
      changed_.wait_for(lock, std::chrono::milliseconds(100));
      comm.Poll();
    }
    if (failed_) throw Error("another side has failed");
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

// The turn in which a side makes the video of a task, after all have been prepared.
int64_t TurnOf(const Sides& sides, const CompareSide& side, size_t task) {
  const size_t count = sides.size();
  const size_t place = (side.index + count - task % count) % count;
  return static_cast<int64_t>(count + task * count + place);
}

void RunSide(const Sides& sides, const CompareSide& side, const std::shared_ptr<LoadedParts>& parts,
             Turns& turns, CompareReport& report) {
  // Where an earlier side has loaded them in its turn, all ranks read its rank 0's.
  const bool loaded = OwnerOfWeights(sides, side.index) < side.index;
  RunOnRanks(side.ranks, [&](Communicator& comm, int threads) {
    const bool leads = comm.rank() == 0;
    SideRun run(side, comm, threads, loaded || leads ? parts : std::make_shared<LoadedParts>(),
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
      in_turn(TurnOf(sides, side, task), [&] { run.Make(task); });
    }
  });
}

void RunHere(const Sides& sides, CompareReport& report) {
  std::vector<std::shared_ptr<LoadedParts>> parts;
  for (const CompareSide& side : sides) {
    const size_t owner = OwnerOfWeights(sides, side.index);
    parts.push_back(owner < side.index ? parts[owner] : std::make_shared<LoadedParts>());
  }
  Turns turns;
  std::vector<std::thread> threads;
  for (const CompareSide& side : sides) {
    threads.emplace_back([&] {
      try {
        RunSide(sides, side, parts[side.index], turns, report);
      } catch (...) {
        turns.Fail(std::current_exception());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  turns.RethrowFailure();
}

// A folder that goes again where nothing has come into it.
class FolderForFrames {
 public:
  // Throws InputError where frames could not be written into it.
  FolderForFrames(std::filesystem::path folder, const char* flag) : folder_(std::move(folder)) {
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    if (error) throw InputError("{} {}: {}", flag, folder_.string(), error.message());
    CheckWritable(folder_ / "00000.png");
  }
  ~FolderForFrames() {
    std::error_code is_not_empty;
    std::filesystem::remove(folder_, is_not_empty);
  }
  FolderForFrames(const FolderForFrames&) = delete;
  FolderForFrames& operator=(const FolderForFrames&) = delete;

 private:
  std::filesystem::path folder_;
};

}  // namespace

void RunComparePrompts(const ComparePrompts& options) {
  ReadPrompts(options.prompts);  // what is wrong with it is no side's fault
  const Sides sides = MakeSides(options.prompts, options.a, options.b);
  std::optional<FolderForFrames> frames, videos;
  if (!options.frames.empty() && IsFirstProcess()) frames.emplace(options.frames, "--save-frames");
  if (!options.html.empty() && IsFirstProcess()) {
    CheckWritable(options.html);
    videos.emplace(VideosOf(options.html), "--html");
  }
  const InterruptWatch interrupts;
  CompareReport report(sides,
                       {.frames = options.frames, .html = options.html, .json = options.json});
  if (UnderLauncher()) {
    RunUnderLauncher(sides, report);
  } else {
    RunHere(sides, report);
  }
  if (IsFirstProcess()) report.Finish();
}

}  // namespace equitile

#include "apps/verify_video.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>

#include "apps/progress.h"
#include "apps/table.h"
#include "apps/video_maker.h"
#include "equitile/base/error.h"
#include "equitile/comm/solo/solo.h"
#include "equitile/io/json_value.h"
#include "equitile/io/video_writer.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

// What is compared of a video.
struct Evidence {
  std::vector<float> latents;
  std::vector<uint8_t> frames;  // all of them, one after another
  std::string file;
};

// The bytes that `generate -o x.mp4` would write.
std::string Encoded(const GenerateRequest& request, const std::vector<RgbImage>& frames) {
  const fs::path path =
      fs::temp_directory_path() / fmt::format("equitile-verify-{}.mp4", ::getpid());
  const auto writer = OpenVideo(path, request.VideoOf(request.tasks.front()));
  for (const RgbImage& frame : frames) writer->Add(frame.pixels);
  writer->Finish();
  std::string bytes = ReadTextFile(path);
  fs::remove(path);
  return bytes;
}

Evidence EvidenceOf(const GenerateRequest& request, MadeVideo video) {
  Evidence evidence{std::move(video.latents), {}, Encoded(request, video.frames)};
  for (const RgbImage& frame : video.frames) {
    evidence.frames.insert(evidence.frames.end(), frame.pixels.begin(), frame.pixels.end());
  }
  return evidence;
}

struct Case {
  int64_t ranks = 1, threads = 1;
  std::string comm = "solo";
};

// Collective; the evidence is rank 0's.
Evidence MakeOn(const GenerateRequest& request, DType weights, Communicator& comm, int threads,
                std::shared_ptr<LoadedParts> parts, std::function<void()> alive = {}) {
  ThreadPool pool(threads);
  std::optional<Progress> progress;
  if (comm.rank() == 0) progress.emplace("");
  const std::string where = fmt::format("{} x {} threads: ", comm.size(), threads);
  PipelineOptions options = PipelineOptionsOf(request, AgreeOnWeights(comm, weights));
  options.parts = std::move(parts);
  VideoMaker maker(
      request, std::move(options), comm, pool,
      [&](std::string_view line) {
        if (progress) progress->Show(where + std::string(line));
      },
      std::move(alive));
  maker.Prepare();
  MadeVideo video = maker.Make(0);
  return comm.rank() == 0 ? EvidenceOf(request, std::move(video)) : Evidence();
}

// Prints as it goes.
class Report {
 public:
  Report(const GenerateRequest& request, bool json) : request_(request), json_(json) {}

  void Reference(Evidence evidence) {
    one_ = std::move(evidence);
    if (json_) return;
    const GenerationConfig& config = request_.config;
    fmt::print("one rank, one thread: {} frames of {}x{}, {} steps; all others against it\n",
               config.frames, config.width, config.height, config.steps);
    std::fflush(stdout);
  }

  void Compare(const Case& where, const Evidence& other) {
    Add(where, "latents", Differences(one_.latents, other.latents));
    Add(where, "frames", Differences(one_.frames, other.frames));
    Add(where, "file", Differences(one_.file, other.file));
  }

  void End() const {
    if (json_) PrintJson({{"ok", failed_ == 0}, {"cases", cases_}});
    if (failed_ > 0) throw Error("verify: {} of {} cases differ", failed_, cases_.size());
  }

 private:
  struct Difference {
    size_t count = 0, of = 0;
    double largest = 0.0;
  };

  template <typename Values>
  static Difference Differences(const Values& a, const Values& b) {
    Difference found{.of = std::max(a.size(), b.size())};
    const size_t both = std::min(a.size(), b.size());
    found.count = found.of - both;
    for (size_t i = 0; i < both; ++i) {
      if (std::memcmp(&a[i], &b[i], sizeof(a[i])) == 0) continue;
      ++found.count;
      found.largest =
          std::max(found.largest, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    }
    return found;
  }

  void Add(const Case& where, const char* what, const Difference& difference) {
    const bool ok = difference.count == 0;
    failed_ += !ok;
    cases_.push_back({{"what", what},
                      {"planner", request_.planner},
                      {"ranks", where.ranks},
                      {"threads", where.threads},
                      {"comm", where.comm},
                      {"promise", "same_bits"},
                      {"ok", ok},
                      {"different", difference.count},
                      {"of", difference.of},
                      {"max_error", difference.largest}});
    if (json_) return;
    fmt::print(
        "{:<8} {:>3} rank{} of {:>2} thread{} {:<8} {}\n", what, where.ranks,
        where.ranks == 1 ? " " : "s", where.threads, where.threads == 1 ? " " : "s", where.comm,
        ok ? "same bits"
           : fmt::format("NOT THE SAME BITS: {} of {} differ", difference.count, difference.of));
    std::fflush(stdout);
  }

  const GenerateRequest& request_;
  bool json_;
  Evidence one_;
  Json cases_ = Json::array();
  int64_t failed_ = 0;
};

std::vector<int64_t> ThreadsFor(const VerifyVideoRequest& request, int64_t ranks) {
  if (!request.threads.empty()) return request.threads;
  return {ThreadsPerRank(request.flags.ranks, ranks)};
}

void VerifyHere(const VerifyVideoRequest& verify, const GenerateRequest& reference,
                const GenerateRequest& request, DType weights) {
  Report report(request, verify.json);
  const auto parts = std::make_shared<LoadedParts>();  // read once, used by all ranks after
  SoloCommunicator alone;
  report.Reference(MakeOn(reference, weights, alone, 1, parts));
  for (int64_t ranks : verify.ranks) {
    for (int64_t threads : ThreadsFor(verify, ranks)) {
      RanksRequest on = verify.flags.ranks;
      on.ranks = ranks;
      on.threads = threads;
      Evidence evidence;
      Case where{.ranks = ranks, .threads = threads};
      RunOnRanks(on, [&](Communicator& comm, int rank_threads) {
        Evidence mine = MakeOn(request, weights, comm, rank_threads, parts);
        if (comm.rank() != 0) return;
        where.comm = comm.name();
        evidence = std::move(mine);
      });
      report.Compare(where, evidence);
    }
  }
  report.End();
}

// The launcher's processes against rank 0 alone, for which the others wait.
void VerifyUnderLauncher(const VerifyVideoRequest& verify, const GenerateRequest& reference,
                         const GenerateRequest& request, DType weights) {
  RunOnRanks(verify.flags.ranks, [&](Communicator& comm, int default_threads) {
    Report report(request, verify.json);
    const bool leads = comm.rank() == 0;
    if (leads) {
      SoloCommunicator alone;
      report.Reference(MakeOn(reference, weights, alone, 1, nullptr, [&] { comm.Poll(); }));
    }
    comm.Barrier();
    const auto parts = std::make_shared<LoadedParts>();
    std::vector<int64_t> all_threads = verify.threads;
    if (all_threads.empty()) all_threads = {default_threads};
    for (int64_t threads : all_threads) {
      const Evidence evidence = MakeOn(request, weights, comm, static_cast<int>(threads), parts);
      const Case where{comm.size(), threads, std::string(comm.name())};
      if (leads) report.Compare(where, evidence);
    }
    comm.Barrier();
    if (leads) report.End();
  });
}

}  // namespace

void VerifyVideo(const VerifyVideoRequest& verify) {
  GenerateFlags flags = verify.flags;
  const std::string planner = flags.planner.value_or("auto");
  flags.planner = "auto";  // which fits one rank
  const GenerateRequest reference = CheckedRequest(flags, VideoFiles::kNone);
  GenerateRequest request = reference;
  request.planner = planner;
  const DType weights = ChooseWeights(request);
  if (UnderLauncher()) return VerifyUnderLauncher(verify, reference, request, weights);
  for (int64_t ranks : verify.ranks) ParsePlanner(planner, static_cast<int32_t>(ranks));
  VerifyHere(verify, reference, request, weights);
}

}  // namespace equitile

#include "apps/verify/verify_video.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "apps/cli/progress.h"
#include "apps/cli/table.h"
#include "equitile/base/error.h"
#include "equitile/comm/solo/solo.h"
#include "equitile/generate/agreement.h"
#include "equitile/generate/compute_choice.h"
#include "equitile/generate/memory_estimate.h"
#include "equitile/generate/video_maker.h"
#include "equitile/io/frames/video_writer.h"
#include "equitile/io/json_value.h"
#include "equitile/plan/planners/planner.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

// What is compared of a video.
struct Evidence {
  std::vector<float> latents;
  std::vector<uint8_t> frames;  // all of them, one after another
  std::string file;
};

// How far latents and frames may be from those of one rank; nothing is promised about the encoded
// file then.
struct Tolerance {
  double latents = 0.0;  // relative L2
  double frames = 0.0;   // rms of the differences, in levels of 255
};

// Where rows are split, two right f32 computations of one run (tests/golden/README.md): +-1 level
// on 0.3 % of the values.
constexpr Tolerance kSplitRows{.latents = 5e-5, .frames = 0.055};
// bf16 keeps 8 bits of 24. On wan-mini latents were off by up to 0.018 (few steps, much guidance),
// those of two seeds by more than 1.
constexpr Tolerance kNarrowWire{.latents = 0.1, .frames = 12.0};

// What one layer in integers errs by, of its output (docs/results/precision.md).
double LayerError(Compute compute) {
  return compute == Compute::kInt8 ? 1.4e-2 : compute == Compute::kInt16 ? 6e-4 : 0.0;
}

// Where rows are split in integers, the weights of a row's parts are rounded against other chunks,
// and that little moves other numbers over the edge of a rounding in every layer after it, until
// two right runs are as far from each other as either is from exact: by LayerError in each pass.
// Guidance u + g (c - u) takes the passes' errors g and g - 1 times. Measured on wan-mini, with
// guidance 1 to 12: latents are off by 0.45 to 1.65 of that; four times are allowed. An error of
// latents becomes one of frames as with the narrow wire, and the VAE's own roundings (66 dB) may
// all fall otherwise.
Tolerance SplitRowsInIntegers(double error, double guidance) {
  const double growth = guidance > 1 ? std::hypot(guidance, guidance - 1) : 1.0;
  const double latents = 4 * error * growth;
  return {.latents = latents, .frames = 0.2 + latents * kNarrowWire.frames / kNarrowWire.latents};
}

// Nothing: the same bits.
std::optional<Tolerance> ToleranceOf(const GenerateRequest& request, int64_t ranks) {
  if (ranks == 1) return std::nullopt;
  if (WireOf(request.recipe) != DType::kF32) return kNarrowWire;
  const auto count = static_cast<int32_t>(ranks);
  const PlannerSpec spec = ParsePlanner(request.recipe.Text("planner"), count);
  if (!MaySplitRows(spec, request.config.Passes(), count, request.recipe.IsOn("reproducible")))
    return std::nullopt;
  const ComputeChoice compute = ComputeOf(request.recipe);
  const double error = std::max(LayerError(compute.attention), LayerError(compute.linear));
  return error == 0 ? kSplitRows : SplitRowsInIntegers(error, request.config.guidance);
}

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

// Collective, when ranks have agreed on the request; the evidence is rank 0's.
Evidence MakeOn(const GenerateRequest& request, WeightType weights, Communicator& comm, int threads,
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
    const std::optional<Tolerance> tolerance = ToleranceOf(request_, where.ranks);
    const Difference latents = Differences(one_.latents, other.latents),
                     frames = Differences(one_.frames, other.frames);
    if (!tolerance) {
      Add(where, "latents", latents);
      Add(where, "frames", frames);
      return Add(where, "file", Differences(one_.file, other.file));
    }
    Add(where, "latents", latents, Bound{latents.RelativeL2(), tolerance->latents});
    Add(where, "frames", frames, Bound{frames.Rms(), tolerance->frames});
  }

  void End() const {
    if (json_) PrintJson({{"ok", failed_ == 0}, {"cases", cases_}});
    if (failed_ > 0) throw Error("verify: {} of {} cases differ", failed_, cases_.size());
    if (!json_) fmt::print("{} passed\n", Counted(std::ssize(cases_), "check"));
  }

 private:
  struct Difference {
    size_t count = 0, of = 0;
    double largest = 0.0;
    double squares = 0.0, one_squares = 0.0;  // of the differences, and of one rank's values

    double RelativeL2() const { return squares == 0.0 ? 0.0 : std::sqrt(squares / one_squares); }
    double Rms() const { return std::sqrt(squares / static_cast<double>(of)); }
  };

  template <typename Values>
  static Difference Differences(const Values& a, const Values& b) {
    Difference found{.of = std::max(a.size(), b.size())};
    const size_t both = std::min(a.size(), b.size());
    found.count = found.of - both;
    if (found.count > 0) found.squares = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < both; ++i) {
      found.one_squares += static_cast<double>(a[i]) * static_cast<double>(a[i]);
      if (std::memcmp(&a[i], &b[i], sizeof(a[i])) == 0) continue;
      const double error = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
      ++found.count;
      found.squares += error * error;
      found.largest = std::max(found.largest, error);
    }
    return found;
  }

  struct Bound {
    double error = 0.0, allowed = 0.0;
  };

  static std::string Words(bool ok, const Difference& difference,
                           const std::optional<Bound>& bound) {
    if (bound) {
      return fmt::format("{}: off by {:.2g}, {:.2g} may be",
                         ok ? "within the bound" : "OUTSIDE OF THE BOUND", bound->error,
                         bound->allowed);
    }
    if (ok) return "same bits";
    return fmt::format("NOT THE SAME BITS: {} of {} differ", difference.count, difference.of);
  }

  // Without a bound the same bits are promised.
  void Add(const Case& where, const char* what, const Difference& difference,
           const std::optional<Bound>& bound = {}) {
    const bool ok = bound ? bound->error <= bound->allowed : difference.count == 0;
    failed_ += !ok;
    cases_.push_back({{"what", what},
                      {"planner", request_.recipe.Text("planner")},
                      {"ranks", where.ranks},
                      {"threads", where.threads},
                      {"comm", where.comm},
                      {"promise", bound ? "bound" : "same_bits"},
                      {"ok", ok},
                      {"different", difference.count},
                      {"of", difference.of},
                      {"max_error", difference.largest},
                      {"error", bound ? bound->error : 0.0},
                      {"bound", bound ? bound->allowed : 0.0}});
    if (json_) return;
    fmt::print("{:<8} {:>3} rank{} of {:>2} thread{} {:<8} {}\n", what, where.ranks,
               where.ranks == 1 ? " " : "s", where.threads, where.threads == 1 ? " " : "s",
               where.comm, Words(ok, difference, bound));
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
                const GenerateRequest& request, WeightType weights) {
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
                         const GenerateRequest& request, WeightType weights) {
  RunOnRanks(verify.flags.ranks, [&](Communicator& comm, int default_threads) {
    AgreeOnRequest(comm, request,
                   {{"--threads", fmt::format("{}", fmt::join(verify.threads, ","))}});
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
  const std::string planner = flags.recipe.Text("planner");
  flags.recipe.Settle("planner", PlannerSpec().Text());  // which fits one rank
  flags.options.files = VideoFiles::kNone;
  const GenerateRequest reference = RequestOf(flags);
  GenerateRequest request = reference;
  request.recipe.Settle("planner", planner);
  const WeightType weights = ChooseWeights(request, Remark);
  if (UnderLauncher()) return VerifyUnderLauncher(verify, reference, request, weights);
  for (int64_t ranks : verify.ranks) ParsePlanner(planner, static_cast<int32_t>(ranks));
  VerifyHere(verify, reference, request, weights);
}

}  // namespace equitile

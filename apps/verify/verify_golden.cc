#include "apps/verify/verify_golden.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "equitile/base/error.h"

namespace equitile {
namespace {

// The subfolder with the checkpoint: tiny-wan, or the only one that has a model_index.json.
std::filesystem::path CheckpointOf(const std::filesystem::path& root) {
  if (!std::filesystem::is_directory(root)) {
    throw InputError("--golden {}: not a folder; make one with tests/golden/make_golden.py",
                     root.string());
  }
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (std::filesystem::exists(entry.path() / "model_index.json")) found.push_back(entry.path());
  }
  if (found.size() != 1) {
    throw InputError("--golden {}: {} checkpoints (folders with a model_index.json); 1 is needed",
                     root.string(), found.size());
  }
  return found[0];
}

// One run over all files on one number of ranks.
struct Outcome {
  int64_t ranks = 0;
  int threads = 0;
  GoldenReport report;
};

void RunParts(const GoldenRun& run) {
  if (run.Leads()) {
    VerifyGoldenText(run);
    VerifyGoldenSchedules(run);
    VerifyGoldenNoise(run);
  }
  VerifyGoldenTransformer(run);
  VerifyGoldenVae(run);
  VerifyGoldenRuns(run);
}

// Nothing on processes that are not the job's rank 0.
std::optional<Outcome> RunOnce(const GoldenFolder& golden, const RanksRequest& on) {
  std::optional<Outcome> outcome;
  RunOnRanks(on, [&](Communicator& comm, int threads) {
    ThreadPool pool(threads);
    Pipeline pipeline(golden.checkpoint, comm, pool, {.tokenizer = TokenizerKind::kTransformers5});
    GoldenReport report;
    RunParts({golden, comm, pool, pipeline, report});
    if (comm.rank() == 0) outcome = Outcome{comm.size(), threads, std::move(report)};
  });
  return outcome;
}

bool SameBits(const std::vector<Outcome>& outcomes) {
  return std::all_of(outcomes.begin(), outcomes.end(), [&](const Outcome& outcome) {
    return outcome.report.Digest() == outcomes.front().report.Digest();
  });
}

Json ToJson(const std::vector<Outcome>& outcomes) {
  // The files are those of the first run that failed, else of the first.
  const auto failed = std::find_if(outcomes.begin(), outcomes.end(),
                                   [](const Outcome& outcome) { return !outcome.report.Ok(); });
  Json json = (failed == outcomes.end() ? outcomes.front() : *failed).report.ToJson();
  json["ok"] = failed == outcomes.end() && SameBits(outcomes);
  json["same_bits"] = SameBits(outcomes);
  Json runs = Json::array();
  for (const Outcome& outcome : outcomes) {
    runs.push_back({{"ranks", outcome.ranks},
                    {"threads_per_rank", outcome.threads},
                    {"ok", outcome.report.Ok()},
                    {"digest", fmt::format("{:016x}", outcome.report.Digest())}});
  }
  json["runs"] = std::move(runs);
  return json;
}

// The files of the first run and of those that fail; then a line for each run.
void Print(const std::vector<Outcome>& outcomes) {
  for (const Outcome& outcome : outcomes) {
    if (&outcome == &outcomes.front() || !outcome.report.Ok()) {
      fmt::print("{}", outcome.report.ToText(Terminal::Of(stdout)));
    }
    fmt::print("{} rank{} of {} thread{}: {} comparisons, {}; bits {:016x}\n", outcome.ranks,
               outcome.ranks == 1 ? "" : "s", outcome.threads, outcome.threads == 1 ? "" : "s",
               outcome.report.Checks(),
               outcome.report.Ok() ? "all within tolerance" : "some FAILED",
               outcome.report.Digest());
  }
  if (outcomes.size() > 1)
    fmt::print("{} bits on all\n", SameBits(outcomes) ? "the same" : "NOT the same");
}

}  // namespace

std::vector<std::string> GoldenFolder::Files(std::string_view prefix,
                                             std::string_view suffix) const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(suffix)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void VerifyGolden(const VerifyGoldenOptions& options) {
  const std::filesystem::path root(options.folder);
  const GoldenFolder golden{root, CheckpointFolder(CheckpointOf(root))};
  if (golden.Files("", ".safetensors").empty()) {
    throw InputError("--golden {}: holds no golden files; make them with make_golden.py",
                     options.folder);
  }
  std::vector<RanksRequest> runs = {options.on};
  if (!options.ranks.empty()) runs.clear();
  for (const int64_t ranks : options.ranks) {
    runs.push_back(options.on);
    runs.back().ranks = ranks;
  }
  std::vector<Outcome> outcomes;
  for (const RanksRequest& on : runs) {
    if (auto outcome = RunOnce(golden, on)) outcomes.push_back(std::move(*outcome));
  }
  if (outcomes.empty()) return;
  if (options.json) {
    PrintJson(ToJson(outcomes));
  } else {
    Print(outcomes);
  }
  for (const Outcome& outcome : outcomes) {
    if (outcome.report.Ok()) continue;
    throw Error("golden files of {}: not equal within tolerance", options.folder);
  }
  if (!SameBits(outcomes)) {
    throw Error("golden files of {}: the bits depend on the number of ranks", options.folder);
  }
  if (options.json) return;
  int64_t checks = 0;
  for (const Outcome& outcome : outcomes) checks += outcome.report.Checks();
  fmt::print("{} passed\n", Counted(checks, "check"));
}

}  // namespace equitile

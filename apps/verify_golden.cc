#include "apps/verify_golden.h"

#include <fmt/format.h>

#include <algorithm>

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

void Run(const GoldenFolder& golden, Communicator& comm, int threads, GoldenReport& report) {
  ThreadPool pool(threads);
  if (comm.rank() == 0) {
    VerifyGoldenText(golden, pool, report);
    VerifyGoldenTransformer(golden, pool, report);
    VerifyGoldenSchedules(golden, report);
    VerifyGoldenNoise(golden, report);
  }
  VerifyGoldenVae(golden, comm, pool, report);
  VerifyGoldenRuns(golden, comm, pool, report);
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
  GoldenReport report;
  bool is_root = false;
  RunOnRanks(options.ranks, [&](Communicator& comm, int threads) {
    GoldenReport mine;
    Run(golden, comm, threads, mine);
    if (comm.rank() == 0) {
      report = std::move(mine);
      is_root = true;
    }
  });
  if (!is_root) return;
  if (options.json) {
    PrintJson(report.ToJson());
  } else {
    fmt::print("{}", report.ToText(Terminal::Of(stdout)));
    fmt::print("{} comparisons, {}; bits {:016x}\n", report.Checks(),
               report.Ok() ? "all within tolerance" : "some FAILED", report.Digest());
  }
  if (!report.Ok()) throw Error("golden files of {}: not equal within tolerance", options.folder);
}

}  // namespace equitile

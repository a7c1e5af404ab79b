// `equitile verify --golden`: a checkpoint's every stage against what diffusers computes from it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "apps/golden_report.h"
#include "apps/ranks.h"
#include "equitile/base/thread_pool.h"
#include "equitile/comm/communicator.h"
#include "equitile/io/checkpoint_folder.h"

namespace equitile {

struct VerifyGoldenOptions {
  std::string folder;  // in the layout of tests/golden
  RanksRequest ranks;
  bool json = false;
};

// Prints the table (or JSON). Throws InputError where the folder cannot be used, Error where a
// comparison fails.
void VerifyGolden(const VerifyGoldenOptions& options);

// What the parts work with.
struct GoldenFolder {
  std::filesystem::path root;
  CheckpointFolder checkpoint;
  // Names of the files that start and end so, sorted.
  std::vector<std::string> Files(std::string_view prefix, std::string_view suffix) const;
};

// The parts; each looks at its own files, and reports a file that is not there as a failure where
// the layout asks for it.
void VerifyGoldenText(const GoldenFolder& golden, ThreadPool& pool, GoldenReport& report);
void VerifyGoldenTransformer(const GoldenFolder& golden, ThreadPool& pool, GoldenReport& report);
void VerifyGoldenSchedules(const GoldenFolder& golden, GoldenReport& report);
void VerifyGoldenNoise(const GoldenFolder& golden, GoldenReport& report);
// Collective; only rank 0's report is filled.
void VerifyGoldenVae(const GoldenFolder& golden, Communicator& comm, ThreadPool& pool,
                     GoldenReport& report);
void VerifyGoldenRuns(const GoldenFolder& golden, Communicator& comm, ThreadPool& pool,
                      GoldenReport& report);

}  // namespace equitile

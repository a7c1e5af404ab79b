// `equitile verify --golden`: a checkpoint's every stage against what diffusers computes from it,
// on any number of ranks, and with the same bits on all of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/cli/ranks.h"
#include "apps/verify/golden_report.h"
#include "equitile/base/thread_pool.h"
#include "equitile/comm/communicator.h"
#include "equitile/generate/pipeline.h"
#include "equitile/io/records/checkpoint_folder.h"

namespace equitile {

struct VerifyGoldenOptions {
  std::string folder;          // in the layout of tests/golden
  std::vector<int64_t> ranks;  // one run each; empty: the launcher's ranks, or one
  RanksRequest on;
  bool json = false;
};

// Prints the table (or JSON). Throws InputError where the folder cannot be used, Error where a
// comparison fails or numbers of ranks give different bits.
void VerifyGolden(const VerifyGoldenOptions& options);

struct GoldenFolder {
  std::filesystem::path root;
  CheckpointFolder checkpoint;
  // Names of the files that start and end so, sorted.
  std::vector<std::string> Files(std::string_view prefix, std::string_view suffix) const;
};

// What the parts work with, on each rank.
struct GoldenRun {
  const GoldenFolder& golden;
  Communicator& comm;
  ThreadPool& pool;
  Pipeline& pipeline;
  GoldenReport& report;  // rank 0's counts

  bool Leads() const { return comm.rank() == 0; }
};

// The parts; each looks at its own files, and reports a file that is not there as a failure where
// the layout asks for it.
void VerifyGoldenText(const GoldenRun& run);         // rank 0
void VerifyGoldenSchedules(const GoldenRun& run);    // rank 0
void VerifyGoldenNoise(const GoldenRun& run);        // rank 0
void VerifyGoldenTransformer(const GoldenRun& run);  // collective, as are the following
void VerifyGoldenVae(const GoldenRun& run);
void VerifyGoldenRuns(const GoldenRun& run);

}  // namespace equitile

// Videos with a pattern beside the dense ones of the same prompts and seeds: what a choice is worth
// in the end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "equitile/generate/request.h"
#include "equitile/io/pattern_file.h"
#include "equitile/search/calibration_run.h"

namespace equitile {

// Rank 0's; [tasks] each. Nothing: the two videos are identical.
struct ValidationResult {
  std::vector<std::optional<double>> psnr;
  std::vector<double> ssim,
      speed;  // speed: seconds of the dense video over those of the sparse one
  bool interrupted = false;

  // Of the videos [begin, end); identical ones count as 100 dB.
  double MeanPsnr(size_t begin, size_t end) const;
};

// Collective. Videos of `tasks`, otherwise as the request has them.
ValidationResult Validate(const GenerateRequest& request, std::vector<GenerateTask> tasks,
                          std::shared_ptr<const PatternFile> file, int64_t dense_steps,
                          Communicator& comm, ThreadPool& pool, const SearchTools& tools);

}  // namespace equitile

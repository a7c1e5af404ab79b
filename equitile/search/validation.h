// Videos with a pattern beside the dense ones of the same prompts and seeds: what a choice is worth
// in the end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "equitile/generate/pipeline.h"
#include "equitile/generate/request.h"
#include "equitile/io/pattern_file.h"
#include "equitile/io/png.h"
#include "equitile/search/calibration_run.h"

namespace equitile {

// One frame of both videos.
struct FrameSample {
  int64_t frame = 0;
  RgbImage dense, sparse;
};

// Of one pattern; rank 0's; [tasks] each. Nothing: the two videos are identical.
struct ValidationResult {
  std::vector<std::optional<double>> psnr;
  std::vector<double> ssim, density;  // density: of all calls, dense steps among them
  std::vector<double> speed;          // seconds of the dense video over those of the sparse one
  std::vector<FrameSample> frames;    // three, of the first task

  // Of the videos [begin, end); identical ones count as 100 dB.
  double MeanPsnr(size_t begin, size_t end) const;
  double MeanPsnr() const { return MeanPsnr(0, psnr.size()); }
};

struct ValidationJob {
  const GenerateRequest& request;  // sizes, steps, ...
  std::vector<GenerateTask> tasks;
  int64_t dense_steps = 0;
  std::string doing;                   // for progress: "validating"
  std::shared_ptr<LoadedParts> parts;  // of the same model
};

// Collective. [files]: videos of the tasks, dense ones made once. Empty: interrupted.
std::vector<ValidationResult> Validate(const ValidationJob& job, std::span<const PatternFile> files,
                                       Communicator& comm, ThreadPool& pool,
                                       const SearchTools& tools);

}  // namespace equitile

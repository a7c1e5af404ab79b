// Videos with a pattern beside the dense ones of the same prompts and seeds: what a choice is worth
// in the end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "equitile/generate/pipeline.h"
#include "equitile/generate/request.h"
#include "equitile/io/frames/png.h"
#include "equitile/io/records/pattern_file.h"
#include "equitile/search/judge/calibration_run.h"
#include "equitile/sparsity/source/source_state.h"

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

  // For checkpoints.
  void AddTo(SourceState& parts, const std::string& prefix) const;
  static ValidationResult From(const SourceState& parts, const std::string& prefix);
};

// Where the others come out well below the last ones, which are the calibration's own; "": they do
// not.
std::string WhyNotTrusted(const ValidationResult& result, size_t own_videos);

struct ValidationJob {
  const GenerateRequest& request;  // sizes, steps, ...
  std::vector<GenerateTask> tasks;
  int64_t dense_steps = 0;
  std::string doing;                                // for progress: "validating"
  std::shared_ptr<LoadedParts> parts;               // of the same model
  std::function<void()> task_done;                  // with all its videos
  std::function<double(double part)> seconds_left;  // when so much of all is done
};

// Collective. results: [files], behind whose tasks it goes on, as many on every rank; dense videos
// are made once. False: interrupted.
bool Validate(const ValidationJob& job, std::span<const PatternFile> files, Communicator& comm,
              ThreadPool& pool, const SearchTools& tools, std::vector<ValidationResult>& results);

}  // namespace equitile

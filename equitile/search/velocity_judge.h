// Files of a search judged by whole steps: heads are not separable, and only the whole model tells
// how errors of layers add up. The states that it starts from are those of a dense walk that is
// made anyway.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/io/pattern_file.h"
#include "equitile/search/calibration_run.h"

namespace equitile {

class VelocityJudge {
 public:
  // prompts: that are walked densely; the first and the last of them are looked at, in three steps
  // after the dense ones.
  VelocityJudge(const GenerateRequest& request, int64_t dense_steps, int64_t prompts);

  // Rank 0, after each step of the dense walk of a prompt.
  void Note(int64_t prompt, const DenoiseStep& step);

  // For checkpoints; what is not noted yet is left out.
  void AddTo(SourceState& parts) const;
  void Restore(const SourceState& parts);

  // Collective. [files] means over the noted steps; empty: interrupted.
  std::vector<double> Errors(std::span<const PatternFile> files, CalibrationRun& run) const;

  int64_t Steps() const { return std::ssize(waypoints_); }  // that a file is judged by
  int64_t Bytes() const;

 private:
  size_t latents_;  // numbers
  std::vector<Waypoint> waypoints_;
};

}  // namespace equitile

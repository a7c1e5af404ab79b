// Masks judged by whole steps: heads are not separable, and only the whole model tells how errors
// of layers add up. The states that it starts from are those of a dense walk that is
// made anyway.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "equitile/search/judge/calibration_run.h"

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

  struct Trial {
    std::string doing;  // for progress: "comparing candidates"
    int64_t sources = 0;
    int64_t every = 1;  // of the noted steps, one in so many
    std::function<std::unique_ptr<MaskSource>(int64_t index)> source;  // anew for every step
    int64_t begin = 0;                                      // sources before it are done already
    std::function<void(int64_t index, double error)> done;  // the mean over steps, on every rank
    std::function<double(double part)> seconds_left;        // when so much of all is done
  };
  // Collective; false: interrupted.
  bool Run(const Trial& trial, CalibrationRun& run) const;

  // That a source is judged by.
  int64_t Steps(int64_t every = 1) const { return CeilDiv(std::ssize(waypoints_), every); }
  int64_t Bytes() const;

 private:
  size_t latents_;  // numbers
  std::vector<Waypoint> waypoints_;
};

}  // namespace equitile

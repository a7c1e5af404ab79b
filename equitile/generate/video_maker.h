// Videos in memory, for commands that look at them instead of writing files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "equitile/base/function_ref.h"
#include "equitile/base/thread_pool.h"
#include "equitile/comm/communicator.h"
#include "equitile/generate/pipeline.h"
#include "equitile/generate/request.h"
#include "equitile/io/frames/png.h"
#include "equitile/io/json_value.h"

namespace equitile {

// What the request says about how its pipeline works; no trace, no reports.
PipelineOptions PipelineOptionsOf(const GenerateRequest& request, WeightType weights);

// Rank 0's.
struct MadeVideo {
  std::vector<float> latents;    // [channels, frames, height, width]
  std::vector<RgbImage> frames;  // as they would be encoded
  double seconds = 0.0;          // of steps and decoding, nothing else
  // SparsitySummary, with attention_seconds, mask_seconds, plan_seconds and steps_skipped.
  Json sparsity;
};

// One per rank; all calls are collective.
class VideoMaker {
 public:
  // `say` gets lines for a progress report on rank 0; `alive` and `stop_requested` are called now
  // and then on every rank. Everything must outlive it.
  VideoMaker(const GenerateRequest& request, PipelineOptions options, Communicator& comm,
             ThreadPool& pool, std::function<void(std::string_view line)> say,
             std::function<void()> alive = {}, std::function<bool()> stop_requested = {});

  // Text, transformer and decoder, so that Make does not wait for them.
  void Prepare();
  MadeVideo Make(size_t task);  // throws Error, on every rank, where it was stopped

 private:
  PipelineOptions WithSignsOfLife(PipelineOptions options) const;
  Json Sparsity(int64_t steps_skipped) const;
  void Alive() const {
    if (alive_) alive_();
  }

  const GenerateRequest& request_;
  Communicator& comm_;
  std::function<void(std::string_view)> say_;
  std::function<void()> alive_;
  std::function<bool()> stop_requested_;
  Pipeline pipeline_;
  std::vector<PromptRows> rows_;  // negative prompt, then tasks
};

}  // namespace equitile

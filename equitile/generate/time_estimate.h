// How long a video takes, from its multiplications and what this machine does per second: for
// --dry-run, before anything is loaded.
#pragma once

#include <cstdint>
#include <string>

#include "equitile/generate/compute_choice.h"
#include "equitile/model/sampling/generation_config.h"
#include "equitile/model/vae/vae_config.h"
#include "equitile/model/wan/wan_config.h"
#include "equitile/plan/predict/machine.h"

namespace equitile {

// How many times as fast as in f32 the parts of a step are in their arithmetic.
struct ComputeGain {
  double attention = 1, linear = 1;
};

// Of one rank with all its threads.
struct ComputeRates {
  double peak_gflops = 0;       // multiply-adds
  double attention_gflops = 0;  // on kept blocks
  ComputeGain gain;
};

// As a machine file says; it was measured with its own number of threads. Integers that it does not
// know count as f32.
ComputeRates RatesOf(const Machine& machine, int64_t head_dim, const ComputeChoice& compute,
                     int threads);

// As the machine file says, 1 where it does not know; or measured now, in some tenths of a second.
ComputeGain GainOf(const Machine& machine, int64_t head_dim, const ComputeChoice& compute);
ComputeGain MeasureGain(int64_t head_dim, const ComputeChoice& compute);

// Measured now, in some tens of milliseconds: all ranks of this process at once, so that more
// threads than cores count for what they are. Attention by the part of the peak that it reaches.
ComputeRates MeasureRates(int64_t head_dim, const ComputeChoice& compute, int32_t ranks,
                          int threads);

// "attention in int8: 1.38 × f32, linear layers in int16: 1.41 × f32 on this CPU (avx2)"; "" where
// all is f32.
std::string ComputeGainText(const ComputeChoice& compute, const ComputeGain& gain);

struct StepShape {
  int64_t tokens = 0, text_rows = 0, passes = 1;
  double density = 1;  // of the mask, mean over layers
  double rho = 1;      // the busiest rank's attention over the mean
  double skipped =
      0;  // share of heads that have neither values nor a part in the output projection
};

// One denoising step on `ranks` ranks, without what they wait for each other's bytes.
double EstimateStepSeconds(const WanConfig& model, const StepShape& shape,
                           const ComputeRates& rates, int32_t ranks);

// All frames of one clip, without tiles; compute: the decoder's.
double EstimateDecodeSeconds(const VaeConfig& vae, const GenerationConfig& config,
                             const ComputeRates& rates, Compute compute, int32_t ranks);

}  // namespace equitile

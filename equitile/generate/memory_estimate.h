// How much memory a video takes, from its sizes alone: for --dry-run, to choose the type of
// weights, and to refuse before any work what cannot fit.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "equitile/generate/request.h"
#include "equitile/kernel/linear/weight_type.h"

namespace equitile {

// The program with its libraries, before anything is loaded.
inline constexpr int64_t kProgramBytes = 40'000'000;

// Of one rank; ranks of one node have program (as threads) and weights together.
struct RunBytes {
  int64_t weights = 0, activations = 0, attention = 0, latents = 0, vae = 0;
  // Frames are decoded when the passes are over, beside their buffers.
  int64_t OwnTotal() const { return activations + attention + latents + vae; }
  int64_t Total() const { return kProgramBytes + weights + OwnTotal(); }
};

// attention_bytes: buffers of the layout.
RunBytes CountRunBytes(const GenerateRequest& request, int64_t attention_bytes, int32_t ranks,
                       int threads);

// Free memory of this machine; as much as there can be where it does not say.
int64_t AvailableBytes();

// As asked for, else f32 where it leaves a third of the free memory for all the rest; `say` hears
// where it does not.
WeightType ChooseWeights(const GenerateRequest& request,
                         const std::function<void(std::string_view)>& say);

// Throws InputError where `ranks` ranks of this process surely need more than is free; `held`: bytes
// of weights that it has loaded before.
void CheckMemory(const GenerateRequest& request, int32_t ranks, int threads, int64_t held = 0);

}  // namespace equitile

// `equitile verify -p`: one video on many ranks and threads: are the bits the same?
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/generate/generate_flags.h"

namespace equitile {

struct VerifyVideoRequest {
  GenerateFlags flags;           // the prompt and how to make it; ranks and threads do not count
  std::vector<int64_t> ranks;    // inside this process; not looked at under a launcher
  std::vector<int64_t> threads;  // per rank; empty: as many as there are cores for
  bool json = false;
};

// Latents, frames and encoded file of every combination against one rank with one thread: the same
// bits, or latents and frames within a bound where the plan splits rows or the wire is bf16. Prints
// one line for each, then throws Error where one breaks its promise.
void VerifyVideo(const VerifyVideoRequest& request);

}  // namespace equitile

// What `equitile generate` was asked for, completely checked before any work is done.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/ranks.h"
#include "equitile/generate/run_checkpoint.h"
#include "equitile/io/checkpoint_folder.h"
#include "equitile/io/video_writer.h"
#include "equitile/model/sampling/generation_config.h"
#include "equitile/model/text/tokenizer.h"
#include "equitile/model/wan/wan_config.h"
#include "equitile/plan/predict/machine.h"
#include "equitile/sparsity/file_masks.h"
#include "equitile/tensor/dtype.h"

namespace equitile {

// As typed; what is not given comes from --from or the checkpoint's own defaults.
struct GenerateFlags {
  std::optional<std::string> prompt;
  std::string prompts, from;
  std::string output, save_latents;
  std::string model;
  std::optional<std::string> negative;
  std::optional<int64_t> width, height, frames, fps, steps, seed;
  std::optional<double> guidance, flow_shift;
  std::optional<std::string> sampler, rng, tokenizer, attention, weights;
  std::optional<std::string> planner, wire;
  std::string machine;
  std::optional<int64_t> ulysses_degree, ring_degree;
  std::optional<double> reuse_threshold;
  std::string trace;
  bool vae_tiling = false;
  bool reproducible = true;
  bool dry_run = false, keep_checkpoint = false, json = false, verbose = false;
  bool resumes = false;
  std::string resume;  // a file, or "": beside the output
  std::optional<int64_t> checkpoint_every;
  int64_t preview_every = 0;
  std::string perf_dump;
  RanksRequest ranks;
};

void AddGenerateFlags(CLI::App& app, GenerateFlags& flags);
// Its parts: -m and -n; sizes and sampling; ranks and layout, and how to compute, which is a part
// of its own too.
void AddModelFlags(CLI::App& app, GenerateFlags& flags);
void AddSamplingFlags(CLI::App& app, GenerateFlags& flags);
void AddExecutionFlags(CLI::App& app, GenerateFlags& flags);
void AddComputeFlags(CLI::App& app, GenerateFlags& flags);

// One video of a request.
struct GenerateTask {
  std::string prompt;  // as given
  uint64_t seed = 0;
  std::filesystem::path output;        // "": no video
  std::filesystem::path save_latents;  // "": none
  std::filesystem::path checkpoint;
  std::filesystem::path sidecar;
  std::filesystem::path perf_dump;
  std::filesystem::path preview;
  bool has_own_seed = false;  // of its line among the prompts
  bool fills_stdout = false;  // with its video or latents: nothing else may be written there

  // What messages call it.
  const std::filesystem::path& Name() const { return output.empty() ? save_latents : output; }
};

struct GenerateRequest {
  GenerateFlags flags;
  std::vector<GenerateTask> tasks;
  CheckpointFolder folder;
  GenerationConfig config;  // seed: of the task
  WanConfig transformer;
  TokenizerKind tokenizer = TokenizerKind::kJson;
  std::string tokenizer_name = "json";
  std::string attention = "dense";
  std::optional<MaskTable> mask;  // for `config.Passes()` items
  uint64_t mask_hash = 0;
  std::string planner = "auto";
  std::string wire = "f32";
  std::optional<DType> weights;    // nothing: by free memory
  std::optional<Machine> machine;  // rates that auto plans with
  uint64_t fingerprint = 0;        // of all weights

  VideoOptions VideoOf(const GenerateTask& task) const;
  // Whether another layout than the one asked for would give other bits: where rows may be split
  // between ranks, or what travels between them is rounded.
  bool BitsDependOnLayout() const;
  std::filesystem::path MaskPath() const;  // what --attention names; "" for dense
  // What decides the bits of a task's result, as texts: stored in checkpoints and compared.
  std::map<std::string, std::string> Parameters(const GenerateTask& task, DType weights_type) const;
};

// Lines of "prompt" or "seed<TAB>prompt"; empty ones are left out.
std::vector<GenerateTask> ReadPrompts(const std::filesystem::path& path, uint64_t default_seed);

// Whether the videos of a request become files.
enum class VideoFiles : uint8_t { kWritten, kNone };

// Throws InputError for everything that can be known to fail before weights are read.
GenerateRequest CheckedRequest(const GenerateFlags& flags, VideoFiles files = VideoFiles::kWritten);

}  // namespace equitile

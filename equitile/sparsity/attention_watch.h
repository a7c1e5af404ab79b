// Looks on while layers attend, for people who want to know: files of masks and of exact masses,
// and the mass that masks hold. Nothing of it changes a bit of what is computed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "equitile/sparsity/mass/mass_meter.h"
#include "equitile/sparsity/mass/mass_probe.h"
#include "equitile/sparsity/source/source_context.h"

namespace equitile {

struct WatchOptions {
  std::filesystem::path masks, masses;  // folders that get a file per step and layer; "": none
  int64_t sampled_q_blocks = 0;         // of each lane, to measure the mass held by; 0: it is not

  bool IsAnything() const { return !masks.empty() || !masses.empty() || sampled_q_blocks > 0; }
};

class AttentionWatch {
 public:
  // The executor must outlive it. Folders are there.
  AttentionWatch(Executor& executor, const SourceContext& context, WatchOptions options);

  // Collective, before the layer writes its output: that may lie where its input was. Returns
  // [lanes] the share of attention that the masks hold; empty where it is not measured, or nothing
  // is left out. Throws Error where a file cannot be written.
  std::vector<double> See(const SelfAttentionCall& call, const LaneMasks& masks);

 private:
  void WriteMasses(const SelfAttentionCall& call, const LaneMasks& masks);

  WatchOptions options_;
  TokenGrid token_grid_;
  Communicator& comm_;
  MassProbe probe_;
  std::optional<MassMeter> meter_;
};

// "step-0004-layer-011.npy", counted from 0 as inside the files.
std::filesystem::path CallFileName(int64_t step, int64_t layer);

}  // namespace equitile

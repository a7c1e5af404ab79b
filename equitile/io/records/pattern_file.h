// What every head of a model attends to, as found by a search: the pattern file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/pattern/head_pattern.h"

namespace equitile {

// {"version": 1 or 2, "kind": "pattern", "model": 16 hexadecimal digits,
//  "grid": [F, H, W], "text": {"before", "after"}, "block", "home_order", "layers", "heads",
//  "calibration": {"prompts": [texts], "seeds": [numbers]},
//  "objective", "dials": {name: number}, "totals": {"density", "predicted_speedup"},
//  "measured": {name: number},
//  "ranges": [{"sigma": [low, high], "layers": [layers][heads] of
//      {"mode", "size" (bands: frames or places), "columns": [[begin, end], ...] (stripes),
//       "density", "error", "p", "theta"}}],
//  "error_weights" (version 2): [{"sigma": [low, high], "layers": [layers] of numbers}]}
// Ranges go from high noise to low, the first from 1, the last to 0, each from where the one before
// ends; those of the weights are their own. p and theta may be left out. A file without weights is
// of version 1, which older programs read too.
struct PatternHead {
  HeadPattern pattern;
  double density = 1;                  // of its blocks, on the file's grid
  double error = 0;                    // what the search measured for it, in the objective's unit
  std::optional<double> predict_mass;  // p: what `predict` keeps for this head
  std::optional<double> observe_mass;  // theta: what `observe` keeps for it

  friend bool operator==(const PatternHead&, const PatternHead&) = default;
};

// low < sigma <= high
struct PatternRange {
  double low = 0, high = 1;
  std::vector<std::vector<PatternHead>> layers;  // [layers][heads]

  friend bool operator==(const PatternRange&, const PatternRange&) = default;
};

// What a layer's budget of error is multiplied by where blocks are chosen by error: more where an
// error matters less to the whole step, or saves more blocks. 0: the layer stays dense.
struct ErrorWeights {
  double low = 0, high = 1;    // low < sigma <= high
  std::vector<double> layers;  // [layers]

  friend bool operator==(const ErrorWeights&, const ErrorWeights&) = default;
};

struct PatternFile {
  uint64_t model = 0;  // fingerprint of the checkpoint
  TokenGrid grid;      // that it was made for
  int64_t block_tokens = 64;
  std::vector<std::string> prompts;  // of the calibration
  std::vector<int64_t> seeds;
  std::string objective;
  std::map<std::string, double> dials;
  double density = 1, predicted_speedup = 1;
  std::map<std::string, double> measured;   // on held-out prompts: psnr, ssim, ...
  std::vector<PatternRange> ranges;         // at least one, of as many layers and heads each
  std::vector<ErrorWeights> error_weights;  // empty: none

  int64_t Layers() const { return std::ssize(ranges.front().layers); }
  int64_t Heads() const { return std::ssize(ranges.front().layers.front()); }
  // The range that a noise level falls into; outside (0, 1] the nearest one.
  size_t RangeAt(double sigma) const;
  std::span<const PatternHead> HeadsAt(double sigma, int64_t layer) const;
  double ErrorWeightAt(double sigma, int64_t layer) const;  // 1 without weights

  friend bool operator==(const PatternFile&, const PatternFile&) = default;
};

std::string PatternFileText(const PatternFile& file);
// Throws InputError in one line for whatever is missing, of the wrong kind, out of range or
// unknown. `name` stands for the text in messages.
PatternFile ParsePatternFile(std::string_view text, std::string_view name);
bool LooksLikePatternFile(std::string_view text);  // JSON whose kind is "pattern"

void WritePatternFile(const std::filesystem::path& path, const PatternFile& file);
PatternFile ReadPatternFile(const std::filesystem::path& path);

// What a file is to be used for.
struct PatternUse {
  uint64_t model = 0;
  int64_t layers = 0, heads = 0;
  TokenGrid grid;
  int64_t block_tokens = 64;
};
// Throws InputError in one line for another model, number of layers or heads, or home order.
// Returns a warning in one line for another grid or block, nothing if all fits.
std::string CheckPatternFits(const PatternFile& file, const PatternUse& use, std::string_view name);

}  // namespace equitile

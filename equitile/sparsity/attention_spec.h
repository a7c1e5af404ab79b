// What `--attention` says: which source of masks, and its dials. Text in, text out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/pattern/lane_masks.h"
#include "equitile/pattern/token_order.h"
#include "equitile/sparsity/mass/mass_rule.h"

namespace equitile {

enum class AttentionKind : uint8_t {
  kDense,
  kMask,            // files
  kPattern,         // a mode per head, from a pattern file
  kPredict,         // by error, every few steps; by mass, from means of strips
  kObserve,         // by error, once; by mass, exact masses of a dense step
  kPatternPredict,  // the head's mode, filled up as by kPredict
  // Baselines, each by its published rule.
  kSvg,
  kRadial,
  kSta,
  kSparge,
  kWindowSpatial,
  kWindowTemporal,
  kOracle,  // the best masks of a density: a yardstick, slower than dense
  kStatic,  // masks that were calibrated once: files
};

struct AttentionSpec {
  AttentionKind kind = AttentionKind::kDense;
  std::string file;                // of masks or patterns; "": none given
  double mass = 0;                 // predict, observe, pattern+predict
  std::optional<double> error;     // the same: see ErrorMasks; then mass does not count
  int64_t rows = 0;                // of a block of queries that are looked at for errors
  std::vector<TokenOrder> orders;  // that a head may take, with error; none: by itself
  MassBudget budget = MassBudget::kRow;  // what mass is a share of; a file's masses are rows'
  double min = 0;                        // predict: share of blocks that is always kept
  double guard = 0;                      // predict: blocks less like themselves are kept; 0: off
  std::optional<int64_t> refresh;        // computed steps; nothing: never
  std::optional<int64_t> at;  // observe: step, counted from 1 as people do; nothing: by itself
  Tail tail = Tail::kNone;
  double density = 0;  // baselines, oracle
  // With a file, whether these were asked for: a default may be another one when the file is known.
  bool says_error = false, says_refresh = false;

  std::string Text()
      const;  // parses back to the same spec; every dial that differs from its default
  bool IsSparse() const { return kind != AttentionKind::kDense; }
  // Whether the file holds masks.
  bool ReadsMasks() const {
    return kind == AttentionKind::kMask || kind == AttentionKind::kStatic ||
           (kind == AttentionKind::kSta && !file.empty());
  }
  // Whether the first steps are dense unless somebody says otherwise.
  bool WarmsUp() const { return IsSparse() && kind != AttentionKind::kMask; }
};

// "dense", "mask:FILE", "predict:mass=0.9,tail=mean", "observe:p.json,mass=0.99", "window:spatial"
// ... Throws InputError that names what is wrong and what would be right. file_has_weights: whether
// the pattern file that it means, if any, has weights of errors; one without them goes by mass.
AttentionSpec ParseAttention(std::string_view text, bool file_has_weights = true);

// The names of its dials, a comma list; "": it has none.
std::string_view DialsOf(AttentionKind kind);

// "20%" or a number of steps; rounded up. Throws InputError.
int64_t ParseDenseSteps(std::string_view text, int64_t steps);

// "easy", "easy:0.05"; nothing for "none". Throws InputError.
std::optional<double> ParseCache(std::string_view text);

}  // namespace equitile

// What a head may attend to, as a search sees it: modes of the pattern file with their ladders of
// sizes, and shares of mass for `observe` and `predict`. A list of options is the same for all
// heads; only the columns of stripes are a head's own.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "equitile/pattern/head_pattern.h"

namespace equitile {

enum class OptionKind : uint8_t {
  kMode,     // of the pattern file
  kObserve,  // the blocks that hold a share of the exact masses, the others by their means
  kPredict,  // the same of the masses that means of strips predict
  kWindow,   // sliding tiles (STA): a window of tiles around the query's own
};

struct HeadOption {
  OptionKind kind = OptionKind::kMode;
  HeadMode mode = HeadMode::kFull;
  double size = 0;                     // bands and stripes: the density wanted; masses: the share
  std::array<int64_t, 3> window = {};  // kWindow: tiles

  bool IsFull() const { return kind == OptionKind::kMode && mode == HeadMode::kFull; }
  friend bool operator==(const HeadOption&, const HeadOption&) = default;
};

// Each begins with full. Options of one kind and mode stand together, sizes ascending: every one
// keeps what the one before keeps, except windows.
std::vector<HeadOption> PaperOptions(double density);  // five modes, one size each
std::vector<HeadOption> LadderOptions();               // the five modes with their ladders
std::vector<HeadOption> BudgetOptions();               // and means, and masses

// Up to six windows of about this density, as STA's search has them: the nearest of those that are
// at most a fifth above it.
std::vector<HeadOption> WindowOptions(const TokenGrid& grid, double density);

// The heaviest blocks of keys, as many as give the density and at least one; of equal ones the
// first. masses: [kv blocks] over the grid's tokens in home order, in any unit.
std::vector<Range> StripeColumns(std::span<const uint64_t> masses, double density,
                                 const TokenGrid& grid, int64_t block_tokens);

// Of a kMode option, for a head whose keys hold these masses.
HeadPattern PatternOf(const HeadOption& option, std::span<const uint64_t> column_masses,
                      const TokenGrid& grid, int64_t block_tokens);

}  // namespace equitile

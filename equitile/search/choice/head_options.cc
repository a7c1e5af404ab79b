#include "equitile/search/choice/head_options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "equitile/base/error.h"
#include "equitile/sparsity/published/static_masks.h"

namespace equitile {
namespace {

constexpr std::array kSizedModes = {HeadMode::kDiagonal, HeadMode::kMultiDiagonal,
                                    HeadMode::kStripes};
// From where half of the attention is missing to where hardly any is.
constexpr std::array<double, 6> kMasses = {0.4, 0.6, 0.75, 0.85, 0.93, 0.98};

}  // namespace

std::vector<HeadOption> PaperOptions(double density) {
  std::vector<HeadOption> options = {{.mode = HeadMode::kFull}, {.mode = HeadMode::kSkip}};
  for (HeadMode mode : kSizedModes) options.push_back({.mode = mode, .size = density});
  return options;
}

std::vector<HeadOption> LadderOptions() {
  std::vector<HeadOption> options = {{.mode = HeadMode::kFull}, {.mode = HeadMode::kSkip}};
  for (HeadMode mode : kSizedModes) {
    for (double density : kLadderDensities) options.push_back({.mode = mode, .size = density});
  }
  return options;
}

std::vector<HeadOption> BudgetOptions() {
  std::vector<HeadOption> options = LadderOptions();
  options.push_back({.mode = HeadMode::kMean});
  for (OptionKind kind : {OptionKind::kObserve, OptionKind::kPredict}) {
    for (double mass : kMasses) options.push_back({.kind = kind, .size = mass});
  }
  return options;
}

std::vector<HeadOption> WindowOptions(const TokenGrid& grid, double density) {
  constexpr size_t kWindows = 6;
  constexpr double kMostAbove = 1.2;
  std::vector<HeadOption> options = {{.mode = HeadMode::kFull}};
  const auto add = [&](const SlidingTilesAt& at) {
    options.push_back({.kind = OptionKind::kWindow, .size = at.density, .window = at.tiles.window});
  };
  const std::vector<SlidingTilesAt> all = SlidingTilesByDensity(grid, density);
  for (const SlidingTilesAt& at : all) {
    if (at.density <= kMostAbove * density && options.size() <= kWindows) add(at);
  }
  if (options.size() == 1) add(all.front());
  return options;
}

std::vector<Range> StripeColumns(std::span<const uint64_t> masses, double density,
                                 const TokenGrid& grid, int64_t block_tokens) {
  const int64_t blocks = CeilDiv(grid.VideoTokens(), block_tokens);
  EQ_CHECK(std::ssize(masses) >= blocks, "{} masses for {} blocks", masses.size(), blocks);
  const auto wanted =
      std::clamp<int64_t>(std::llround(density * static_cast<double>(blocks)), 1, blocks);
  std::vector<int64_t> heaviest(static_cast<size_t>(blocks));
  std::iota(heaviest.begin(), heaviest.end(), 0);
  std::stable_sort(heaviest.begin(), heaviest.end(), [&](int64_t a, int64_t b) {
    return masses[static_cast<size_t>(a)] > masses[static_cast<size_t>(b)];
  });
  heaviest.resize(static_cast<size_t>(wanted));
  std::sort(heaviest.begin(), heaviest.end());
  std::vector<Range> columns;
  for (int64_t block : heaviest) {
    const Range tokens = {block * block_tokens,
                          std::min((block + 1) * block_tokens, grid.VideoTokens())};
    if (!columns.empty() && columns.back().end == tokens.begin) {
      columns.back().end = tokens.end;
    } else {
      columns.push_back(tokens);
    }
  }
  return columns;
}

HeadPattern PatternOf(const HeadOption& option, std::span<const uint64_t> column_masses,
                      const TokenGrid& grid, int64_t block_tokens) {
  EQ_CHECK(option.kind == OptionKind::kMode);
  switch (option.mode) {
    case HeadMode::kDiagonal:
    case HeadMode::kMultiDiagonal:
      return BandOfDensity(option.mode, option.size, grid, block_tokens);
    case HeadMode::kStripes:
      return {.mode = option.mode,
              .size = 0,
              .columns = StripeColumns(column_masses, option.size, grid, block_tokens)};
    default:
      return {.mode = option.mode, .size = 0, .columns = {}};
  }
}

}  // namespace equitile

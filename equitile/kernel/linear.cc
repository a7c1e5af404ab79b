#include "equitile/kernel/linear.h"

#include <algorithm>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/kernel/linear_tile.h"

namespace equitile {
namespace {

// Tokens whose produced rows wait together for their tiles. Weights that do not fit in the last
// level cache are read from memory once per chunk, so it should be long; 32 MiB of rows are a
// thousand tokens even at the widest layer.
constexpr int64_t kChunkBytes = int64_t{32} << 20;

// Tokens that one call of a producer makes.
constexpr int64_t kProducedTokens = 32;

// Tiles per thread at least, so that the last ones end at about the same time; below kFewPanels a
// tile would spend too much of its time on reading its rows.
constexpr int64_t kTilesPerThread = 16;
constexpr int64_t kFewPanels = 8;

// The last tiles become smaller in steps of this many tokens, a multiple of every target's rows per
// register tile.
constexpr int64_t kTaperTokens = 12;

void CheckShape(const ConstView& view, const char* name, const Shape& wanted) {
  if (view.shape() == wanted) return;
  throw InputError("[kernel] linear {} {}: must be {}", name, view.shape().ToString(),
                   wanted.ToString());
}

void CheckRanges(std::span<const Range> ranges, const char* what, int64_t count) {
  int64_t last = 0;
  for (const Range& range : ranges) {
    if (range.begin < last || range.empty() || range.end > count) {
      throw InputError("[kernel] linear {} {}..{}: must ascend within {}", what, range.begin,
                       range.end, count);
    }
    last = range.end;
  }
}

bool HasNoInputs(const LinearArgs& args) {
  return args.inputs.size() == 1 && args.inputs[0].empty();
}

// What a row of x holds.
int64_t InputsOf(const LinearArgs& args) {
  if (args.inputs.empty()) return args.weights.In();
  int64_t sum = 0;
  for (const Range& range : args.inputs) sum += range.size();
  return sum;
}

void CheckArgs(const LinearArgs& args) {
  const int64_t in = args.weights.In(), out = args.weights.Out();
  if (in < 1) throw InputError("[kernel] linear layer without weights");
  if (args.y.Rank() != 2) {
    throw InputError("[kernel] linear y {}: must be [tokens, out]", args.y.shape().ToString());
  }
  const int64_t tokens = args.y.Extent(0);
  CheckShape(args.y, "y", {tokens, out});
  if (!HasNoInputs(args)) {
    CheckRanges(args.inputs, "inputs", in);
    if (static_cast<bool>(args.x.producer) == (args.x.view.Rank() != 0)) {
      throw InputError("[kernel] linear x: must be either a view or a producer");
    }
    if (!args.x.producer) CheckShape(args.x.view, "x", {tokens, InputsOf(args)});
  }
  const LinearEpilogue& epilogue = args.epilogue;
  if (!epilogue.bias.empty() && static_cast<int64_t>(epilogue.bias.size()) != out) {
    throw InputError("[kernel] linear bias of {}: must have {} elements", epilogue.bias.size(),
                     out);
  }
  if (epilogue.gate.Data() != nullptr) {
    const Shape per_column = {out}, per_token = {tokens, out};
    CheckShape(epilogue.gate, "gate", epilogue.gate.Rank() == 1 ? per_column : per_token);
  }
  if (epilogue.residual.Data() != nullptr) {
    CheckShape(epilogue.residual, "residual", {tokens, out});
  }
  CheckRanges(args.columns, "columns", out);
}

// Every range of inputs in pieces of about the same depth.
std::vector<DepthPiece> DepthPieces(const LinearArgs& args) {
  const Range all[] = {{0, args.weights.In()}};
  std::vector<DepthPiece> pieces;
  int64_t x = 0;
  for (const Range& range : args.inputs.empty() ? std::span<const Range>(all) : args.inputs) {
    const int64_t count = std::max<int64_t>(1, CeilDiv(range.size(), kPieceDepth));
    for (int64_t i = 0; i < count; ++i) {
      const Range groups = EvenPart(CeilDiv(range.size(), 16), i, count);
      const Range inputs = {range.begin + groups.begin * 16,
                            std::min(range.end, range.begin + groups.end * 16)};
      pieces.push_back({.inputs = inputs, .x = x});
      x += inputs.size();
    }
  }
  return pieces;
}

// The panels that hold wanted columns. A panel comes twice only where the columns in it have a gap.
std::vector<PanelColumns> WantedPanels(const LinearArgs& args) {
  const Range all[] = {{0, args.weights.Out()}};
  std::vector<PanelColumns> panels;
  for (const Range& range : args.columns.empty() ? std::span<const Range>(all) : args.columns) {
    for (int64_t begin = range.begin; begin < range.end;) {
      const int64_t panel = begin / kPanelColumns;
      const int64_t end = std::min(range.end, (panel + 1) * kPanelColumns);
      if (!panels.empty() && panels.back().columns.end == begin && panels.back().panel == panel) {
        panels.back().columns.end = end;
      } else {
        panels.push_back({panel, {begin, end}});
      }
      begin = end;
    }
  }
  return panels;
}

class Call {
 public:
  Call(const LinearArgs& args, ThreadPool& pool, Workspace& workspace)
      : args_(args),
        pool_(pool),
        workspace_(workspace),
        panels_(WantedPanels(args)),
        pieces_(DepthPieces(args)) {
    workspace.ReservePerThread<float>(pool.Threads(), LinearTileScratchFloats());
  }

  void Run() {
    const Range tokens = {0, args_.y.Extent(0)};
    if (!args_.x.producer || HasNoInputs(args_)) {
      return ComputeTiles(tokens, nullptr, 0);
    }
    const int64_t in = InputsOf(args_);
    const int64_t row_bytes = in * static_cast<int64_t>(sizeof(float));
    const int64_t chunk = std::min(
        tokens.end, std::max<int64_t>(1, kChunkBytes / row_bytes / kTileTokens) * kTileTokens);
    float* rows = workspace_.Shared<float>(chunk * in);
    for (int64_t begin = 0; begin < tokens.end; begin += chunk) {
      const Range part = {begin, std::min(tokens.end, begin + chunk)};
      Produce(part, rows);
      ComputeTiles(part, rows, in);
    }
  }

 private:
  void Produce(Range tokens, float* rows) {
    pool_.ParallelFor(CeilDiv(tokens.size(), kProducedTokens), [&](int64_t task, int) {
      const int64_t first = task * kProducedTokens;
      const int64_t count = std::min(kProducedTokens, tokens.size() - first);
      args_.x.producer(0, tokens.begin + first, count, rows + first * InputsOf(args_));
    });
  }

  // rows: those of `tokens`, or null.
  void ComputeTiles(Range tokens, const float* rows, int64_t row_stride) {
    const auto panels = static_cast<int64_t>(panels_.size());
    const int64_t most = MaxTilePanels(std::ssize(pieces_));
    const int64_t wanted_tiles = kTilesPerThread * pool_.Threads();
    const int64_t group =
        std::clamp(panels * CeilDiv(tokens.size(), kTileTokens) / wanted_tiles, kFewPanels, most);
    const int64_t groups = CeilDiv(panels, group);
    const std::vector<Range> parts = TokenTiles(tokens.size(), groups == 1);
    const auto token_tiles = static_cast<int64_t>(parts.size());
    // Tokens inside panels: the weights of a group are read from memory once and then stay in the
    // last level cache for all tokens.
    pool_.ParallelFor(groups * token_tiles, [&](int64_t task, int thread) {
      const Range part = EvenPart(panels, task / token_tiles, groups);
      const Range in_part = parts[static_cast<size_t>(task % token_tiles)];
      LinearTile tile;
      tile.args = &args_;
      tile.tokens = {tokens.begin + in_part.begin, tokens.begin + in_part.end};
      tile.panels = std::span(panels_).subspan(static_cast<size_t>(part.begin),
                                               static_cast<size_t>(part.size()));
      tile.pieces = pieces_;
      tile.rows = rows == nullptr ? nullptr : rows + in_part.begin * row_stride;
      tile.row_stride = row_stride;
      ComputeLinearTile(tile, workspace_.ForThread<float>(thread));
    });
  }

  // Tiles of kTileTokens; towards the end, if `taper`, smaller ones, so that no thread waits long
  // for the last.
  std::vector<Range> TokenTiles(int64_t tokens, bool taper) const {
    std::vector<Range> tiles;
    for (int64_t begin = 0; begin < tokens; begin = tiles.back().end) {
      const int64_t share = RoundUp((tokens - begin) / (2 * pool_.Threads()), kTaperTokens);
      const int64_t size = taper ? std::clamp(share, 2 * kTaperTokens, kTileTokens) : kTileTokens;
      tiles.push_back({begin, std::min(tokens, begin + size)});
    }
    return tiles;
  }

  const LinearArgs& args_;
  ThreadPool& pool_;
  Workspace& workspace_;
  const std::vector<PanelColumns> panels_;
  const std::vector<DepthPiece> pieces_;
};

}  // namespace

void Linear(const LinearArgs& args, ThreadPool& pool, Workspace& workspace) {
  CheckArgs(args);
  if (args.y.Extent(0) == 0) return;
  Call(args, pool, workspace).Run();
}

}  // namespace equitile

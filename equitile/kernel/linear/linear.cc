#include "equitile/kernel/linear/linear.h"

#include <algorithm>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/kernel/linear/linear_tile.h"
#include "equitile/kernel/rounding.h"
#include "equitile/kernel/rows/round_rows.h"

namespace equitile {
namespace {

// Tokens whose produced rows wait together for their tiles. Weights that do not fit in the last
// level cache are read from memory once per chunk, so it should be long; 32 MiB of rows are a
// thousand tokens even at the widest layer.
constexpr int64_t kChunkBytes = int64_t{32} << 20;

// Tokens that one call of a producer makes; where they are rounded next, no more than stay in L2.
constexpr int64_t kProducedTokens = 32;
constexpr int64_t kRoundedFloats = 1 << 16;

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
std::vector<DepthPiece> FloatPieces(const LinearArgs& args) {
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

// The parts of the inputs that are there at all, whole: rounded rows hold 0 for what is not.
std::vector<DepthPiece> IntegerPieces(const LinearArgs& args) {
  const int64_t depth = PartInputs(ComputeOf(args.weights.type()));
  if (HasNoInputs(args)) return {DepthPiece()};
  std::vector<DepthPiece> pieces;
  for (int64_t begin = 0; begin < args.weights.In(); begin += depth) {
    const Range part = {begin, std::min(args.weights.In(), begin + depth)};
    const bool is_there =
        args.inputs.empty() || std::ranges::any_of(args.inputs, [&](const Range& range) {
          return range.begin < part.end && part.begin < range.end;
        });
    if (is_there) pieces.push_back({.inputs = part, .x = begin});
  }
  return pieces;
}

std::vector<DepthPiece> DepthPieces(const LinearArgs& args) {
  return IsInteger(args.weights.type()) ? IntegerPieces(args) : FloatPieces(args);
}

// Rows of some tokens that were made for the tiles of a call.
struct PreparedRows {
  std::byte* data = nullptr;  // [tokens][pitch], null: x is read where it lies
  int64_t pitch = 0;          // in numbers
  int64_t number_bytes = 0;
  float* scales = nullptr;  // [tokens], of integers

  std::byte* At(int64_t token) const { return data + token * pitch * number_bytes; }
};

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
        inputs_(InputsOf(args)),
        rounds_(IsInteger(args.weights.type())),
        panels_(WantedPanels(args)),
        pieces_(DepthPieces(args)) {
    const int64_t rounding = rounds_ ? (RoundedTokens() + 1) * inputs_ : 0;
    workspace.ReservePerThread<float>(pool.Threads(),
                                      std::max(LinearTileScratchFloats(), rounding));
  }

  void Run() {
    const Range tokens = {0, args_.y.Extent(0)};
    if (HasNoInputs(args_)) {
      static constexpr float kNoScales[kTileTokens] = {};
      return ComputeTiles(tokens, {.scales = const_cast<float*>(kNoScales)});
    }
    if (!args_.x.producer && !rounds_) return ComputeTiles(tokens, {});
    PreparedRows rows;
    rows.pitch = rounds_ ? RoundUp(args_.weights.In(), kRoundedStep) : inputs_;
    rows.number_bytes = rounds_ ? WeightBytes(args_.weights.type()) : sizeof(float);
    const int64_t row_bytes = rows.pitch * rows.number_bytes;
    const int64_t chunk = std::min(
        tokens.end, std::max<int64_t>(1, kChunkBytes / row_bytes / kTileTokens) * kTileTokens);
    // Scales first: rows then begin on a cache line.
    const int64_t scale_bytes = RoundUp(chunk, kRoundedStep) * sizeof(float);
    std::byte* memory = workspace_.Shared<std::byte>(scale_bytes + chunk * row_bytes);
    rows.scales = reinterpret_cast<float*>(memory);
    rows.data = memory + scale_bytes;
    for (int64_t begin = 0; begin < tokens.end; begin += chunk) {
      const Range part = {begin, std::min(tokens.end, begin + chunk)};
      rounds_ ? Round(part, rows) : Produce(part, rows);
      ComputeTiles(part, rows);
    }
  }

 private:
  void Produce(Range tokens, const PreparedRows& rows) {
    pool_.ParallelFor(CeilDiv(tokens.size(), kProducedTokens), [&](int64_t task, int) {
      const int64_t first = task * kProducedTokens;
      const int64_t count = std::min(kProducedTokens, tokens.size() - first);
      args_.x.producer(0, tokens.begin + first, count, reinterpret_cast<float*>(rows.At(first)));
    });
  }

  int64_t RoundedTokens() const {
    return std::clamp<int64_t>(kRoundedFloats / std::max<int64_t>(1, inputs_), 1, kProducedTokens);
  }

  void Round(Range tokens, const PreparedRows& rows) {
    const int64_t step = RoundedTokens();
    pool_.ParallelFor(CeilDiv(tokens.size(), step), [&](int64_t task, int thread) {
      const int64_t first = task * step, count = std::min(step, tokens.size() - first);
      const Range part = {tokens.begin + first, tokens.begin + first + count};
      float* scratch = workspace_.ForThread<float>(thread);  // a row, then those of a producer
      const ConstView x =
          args_.x.producer ? Produced(part, scratch + inputs_) : args_.x.view.Slice(0, part);
      RoundRows(x, args_.inputs, ComputeOf(args_.weights.type()),
                {.numbers = rows.At(first), .pitch = rows.pitch, .scales = rows.scales + first},
                scratch);
    });
  }

  ConstView Produced(Range tokens, float* rows) const {
    args_.x.producer(0, tokens.begin, tokens.size(), rows);
    return ConstView(rows, {tokens.size(), inputs_});
  }

  // rows: those of `tokens`.
  void ComputeTiles(Range tokens, const PreparedRows& rows) {
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
      if (rows.data != nullptr) tile.rows = rows.At(in_part.begin);
      tile.row_stride = rows.pitch;
      tile.scales = rows.data != nullptr ? rows.scales + in_part.begin : rows.scales;
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
  const int64_t inputs_;  // of a row of x
  const bool rounds_;     // tokens become integers, as the weights are
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

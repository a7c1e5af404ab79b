#include "equitile/kernel/linear_tile.h"

#include <algorithm>
#include <cstddef>

#include "equitile/base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/linear_tile.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/activation-inl.h"
#include "equitile/kernel/gemm-inl.h"
#include "equitile/kernel/pack-inl.h"

#ifndef EQUITILE_KERNEL_LINEAR_TILE_ONCE_
#define EQUITILE_KERNEL_LINEAR_TILE_ONCE_
namespace equitile {

inline constexpr size_t kPanelSums = kTileTokens * kPanelColumns;  // sums of one panel
inline constexpr size_t kPanelPiece = kPieceDepth * kPanelColumns;
inline constexpr size_t kMaxTileStrips = 2;

// Rows of a piece lie in groups of 16 inputs, [group][token][16]. With a few more places than
// tokens the groups of a register tile spread over the sets of L1, beside the panel.
inline constexpr size_t kRowPitch = kTileTokens + 6;
inline constexpr size_t kPieceRows = kPieceDepth * kRowPitch;
static_assert(kPieceDepth % 16 == 0);

// Parts of a thread's scratch.
struct LinearScratch {
  explicit LinearScratch(float* scratch)
      : sums(scratch), rows(sums + kTilePanels * kPanelSums), panels(rows + kPieceRows) {}
  float* sums;    // [panels][kTileTokens][16]
  float* rows;    // [kPieceDepth / 16][kRowPitch][16]
  float* panels;  // [kMaxTileStrips][kPieceDepth][16], for panels that are widened
};
inline constexpr int64_t kScratchFloats =
    kTilePanels * kPanelSums + kPieceRows + kMaxTileStrips * kPanelPiece;

}  // namespace equitile
#endif  // EQUITILE_KERNEL_LINEAR_TILE_ONCE_

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

static_assert(kStripFloats == kPanelColumns && kTileStrips <= kMaxTileStrips);
static_assert(kTileTokens % kTileRows == 0);

// n elements, `stride` apart, to f32.
template <class T>
HWY_INLINE void GatherFloats(const T* from, int64_t stride, size_t n, float* to) {
  if (stride == 1) return ToFloats(from, n, to);
  for (size_t i = 0; i < n; ++i) to[i] = ToFloat(from[static_cast<int64_t>(i) * stride]);
}

template <class T>
HWY_INLINE void ScatterFloats(const float* from, size_t n, int64_t stride, T* to) {
  if (stride == 1) return FromFloats(from, n, to);
  for (size_t i = 0; i < n; ++i) to[static_cast<int64_t>(i) * stride] = FromFloat<T>(from[i]);
}

void Gather(const void* from, DType dtype, int64_t stride, size_t n, float* to) {
  switch (dtype) {
    case DType::kF32:
      return GatherFloats(static_cast<const float*>(from), stride, n, to);
    case DType::kBF16:
      return GatherFloats(static_cast<const Bf16*>(from), stride, n, to);
    case DType::kF16:
      return GatherFloats(static_cast<const F16*>(from), stride, n, to);
  }
}

void Scatter(const float* from, size_t n, DType dtype, int64_t stride, void* to) {
  switch (dtype) {
    case DType::kF32:
      return ScatterFloats(from, n, stride, static_cast<float*>(to));
    case DType::kBF16:
      return ScatterFloats(from, n, stride, static_cast<Bf16*>(to));
    case DType::kF16:
      return ScatterFloats(from, n, stride, static_cast<F16*>(to));
  }
}

// What turns the sums of one panel into output. Works on whole panels; where only some columns are
// wanted, the others are computed beside them and dropped.
class PanelEpilogue {
 public:
  PanelEpilogue() = default;
  PanelEpilogue(const LinearArgs& args, const PanelColumns& wanted)
      : args_(&args),
        begin_(wanted.columns.begin),
        offset_(static_cast<size_t>(begin_ - wanted.panel * kPanelColumns)),
        count_(static_cast<size_t>(wanted.columns.size())) {
    const LinearEpilogue& epilogue = args.epilogue;
    has_bias_ = !epilogue.bias.empty();
    if (has_bias_) std::copy_n(epilogue.bias.data() + begin_, count_, bias_ + offset_);
    has_gate_ = epilogue.gate.Data() != nullptr;
    gate_per_token_ = has_gate_ && epilogue.gate.Rank() == 2;
    if (has_gate_ && !gate_per_token_) {
      Gather(epilogue.gate.Address(begin_), epilogue.gate.dtype(), epilogue.gate.Stride(0), count_,
             gate_ + offset_);
    }
    has_residual_ = epilogue.residual.Data() != nullptr;
    y_direct_ = args.y.dtype() == DType::kF32 && args.y.Stride(1) == 1 && count_ == kStripFloats;
  }

  // Whether sums need nothing but the bias, and lie in y as they do here.
  bool IsPlain() const {
    return y_direct_ && !has_gate_ && !has_residual_ &&
           args_->epilogue.activation == Activation::kNone;
  }
  // The same as Finish for strip `strip` of sums that are still in registers.
  template <size_t kRows, size_t kStrips>
  EQ_TILE void FinishPlain(int64_t first_token, size_t strip, Tile<kRows, kStrips>& tile) const {
    if (has_bias_) {
      EQ_UNROLL
      for (size_t i = 0; i < kStripVecs; ++i) {
        const VF bias = hn::Load(DF(), bias_ + i * kVecFloats);
        EQ_UNROLL
        for (size_t r = 0; r < kRows; ++r) {
          VF& c = tile.c[r][strip * kStripVecs + i];
          c = hn::Add(c, bias);
        }
      }
    }
    const int64_t stride = args_->y.Stride(0);
    auto* y = static_cast<float*>(args_->y.Address(first_token, begin_));
    EQ_UNROLL
    for (size_t r = 0; r < kRows; ++r, y += stride) {
      EQ_UNROLL
      for (size_t i = 0; i < kStripVecs; ++i)
        hn::StoreU(tile.c[r][strip * kStripVecs + i], DF(), y + i * kVecFloats);
    }
  }

  // Touches the output before it is written: lines of y are no neighbours.
  HWY_INLINE void FetchOutput(int64_t first_token, size_t rows) const {
    const char* y = static_cast<const char*>(args_->y.Address(first_token, begin_));
    const int64_t stride = args_->y.Stride(0) * DTypeBytes(args_->y.dtype());
    for (size_t r = 0; r < rows; ++r, y += stride) __builtin_prefetch(y, 1, 3);
  }

  // sums: [rows][16] of tokens first_token, ...
  HWY_NOINLINE void Finish(int64_t first_token, size_t rows, const float* sums) const {
    switch (args_->epilogue.activation) {
      case Activation::kNone:
        return FinishAs<Activation::kNone>(first_token, rows, sums);
      case Activation::kGeluTanh:
        return FinishAs<Activation::kGeluTanh>(first_token, rows, sums);
      case Activation::kSilu:
        return FinishAs<Activation::kSilu>(first_token, rows, sums);
    }
  }

 private:
  template <Activation kActivation>
  HWY_INLINE void FinishAs(int64_t first_token, size_t rows, const float* sums) const {
    const DF d;
    alignas(64) float gate_row[kStripFloats] = {};
    alignas(64) float residual_row[kStripFloats] = {};
    alignas(64) float y_row[kStripFloats];
    for (size_t r = 0; r < rows; ++r, sums += kStripFloats) {
      const int64_t token = first_token + static_cast<int64_t>(r);
      const float* gate = gate_per_token_ ? Row(args_->epilogue.gate, token, gate_row) : gate_;
      const float* residual =
          has_residual_ ? Row(args_->epilogue.residual, token, residual_row) : residual_row;
      void* to = args_->y.Address(token, begin_);
      float* y = y_direct_ ? static_cast<float*>(to) : y_row;
      EQ_UNROLL
      for (size_t i = 0; i < kStripFloats; i += kVecFloats) {
        VF v = hn::LoadU(d, sums + i);
        if (has_bias_) v = hn::Add(v, hn::LoadU(d, bias_ + i));
        if constexpr (kActivation == Activation::kGeluTanh) v = GeluTanh(d, v);
        if constexpr (kActivation == Activation::kSilu) v = Silu(d, v);
        if (has_gate_ && has_residual_) {
          v = hn::MulAdd(v, hn::LoadU(d, gate + i), hn::LoadU(d, residual + i));
        } else if (has_gate_) {
          v = hn::Mul(v, hn::LoadU(d, gate + i));
        } else if (has_residual_) {
          v = hn::Add(v, hn::LoadU(d, residual + i));
        }
        hn::StoreU(v, d, y + i);
      }
      if (!y_direct_) {
        Scatter(y_row + offset_, count_, args_->y.dtype(), args_->y.Stride(1), to);
      }
    }
  }

  // The panel's columns of one row of a [tokens, out] view as [16] floats: where they lie, or
  // converted into `row`.
  HWY_INLINE const float* Row(const ConstView& view, int64_t token, float* row) const {
    const void* from = view.Address(token, begin_);
    if (view.dtype() == DType::kF32 && view.Stride(1) == 1 && count_ == kStripFloats) {
      return static_cast<const float*>(from);
    }
    Gather(from, view.dtype(), view.Stride(1), count_, row + offset_);
    return row;
  }

  const LinearArgs* args_ = nullptr;
  int64_t begin_ = 0;  // first wanted column,
  size_t offset_ = 0;  // its place in the panel,
  size_t count_ = 0;   // and how many
  bool has_bias_ = false, has_gate_ = false, gate_per_token_ = false, has_residual_ = false;
  bool y_direct_ = false;
  alignas(64) float bias_[kStripFloats] = {};
  alignas(64) float gate_[kStripFloats] = {};
};

// All rows of a tile over one piece of kStrips panels.
template <size_t kStrips>
struct PieceRows {
  const float* a;       // [depth / 16][kRowPitch][16]
  const float* panels;  // kStrips times [depth][16], panel_stride apart
  size_t panel_stride;
  size_t depth;
  float* sums;  // kStrips times [kTileTokens][16]
  bool first, last;
  bool plain;                      // of all epilogues
  const PanelEpilogue* epilogues;  // [kStrips]
  int64_t first_token;
  const float* ahead;  // the next panels, ahead_stride apart
  size_t ahead_stride;

  // Lines of each of them per 16 steps: together the register tiles touch all.
  static constexpr size_t kAheadLines = HWY_MAX(size_t{1}, 16 * kTileRows / kTileTokens);

  template <size_t kRows>
  EQ_TILE void Rows(size_t row) const {
    Tile<kRows, kStrips> tile;
    float* to = sums + row * kStripFloats;
    if (first) {
      tile.Zero();
    } else {
      tile.Load(to, kStripFloats, kPanelSums);
    }
    if (last) {
      EQ_UNROLL
      for (size_t s = 0; s < kStrips; ++s)
        epilogues[s].FetchOutput(first_token + static_cast<int64_t>(row), kRows);
    }
    const float *from = a + row * 16, *panel = panels;
    const float* next = ahead + row * depth / kTileTokens * kStripFloats;
    EQ_NO_UNROLL
    for (size_t d = 16; d <= depth; d += 16, from += kRowPitch * 16, panel += kStripFloats * 16) {
      EQ_UNROLL
      for (size_t i = 0; i < kAheadLines * kStrips; ++i)
        __builtin_prefetch(next + i % kAheadLines * 16 + i / kAheadLines * ahead_stride, 0, 2);
      next += kAheadLines * 16;
      tile.template MultiplyAddFixed<AOrder::kRowMajor, 16, 16>(from, panel, panel_stride);
    }
    if (depth % 16 != 0)
      tile.template MultiplyAdd<AOrder::kRowMajor, 16>(from, 16, panel, panel_stride, depth % 16);
    if (last && plain) {
      EQ_UNROLL
      for (size_t s = 0; s < kStrips; ++s)
        epilogues[s].FinishPlain(first_token + static_cast<int64_t>(row), s, tile);
      return;
    }
    tile.Store(to, kStripFloats, kPanelSums);
    if (last) {
      for (size_t s = 0; s < kStrips; ++s) {
        epilogues[s].Finish(first_token + static_cast<int64_t>(row), kRows, to + s * kPanelSums);
      }
    }
  }
};

// One piece of the depth.
struct Piece {
  Range depth;
  int64_t x;  // where it begins in rows of x
  bool first, last;
};

// Where the panels lie that come after some.
struct NextPanels {
  const PanelColumns* panels = nullptr;
  int64_t depth = 0;  // where their piece begins
};

// kStrips panels of the tile, from `panels` on.
template <size_t kStrips>
void ComputePanels(const LinearTile& tile, const Piece& piece, const PanelColumns* panels,
                   const NextPanels& next, float* sums, const LinearScratch& scratch) {
  const PackedLinear& weights = tile.args->weights;
  const auto depth = static_cast<size_t>(piece.depth.size());
  const size_t skip = static_cast<size_t>(piece.depth.begin) * kStripFloats;

  PieceRows<kStrips> body;
  body.a = scratch.rows;
  body.depth = depth;
  body.sums = sums;
  body.first = piece.first;
  body.last = piece.last;
  body.first_token = tile.tokens.begin;
  if (weights.dtype() == DType::kF32) {
    body.panels = static_cast<const float*>(weights.Panel(panels[0].panel)) + skip;
    body.panel_stride = static_cast<size_t>(panels[kStrips - 1].panel - panels[0].panel) *
                        static_cast<size_t>(weights.In()) * kStripFloats;
    body.ahead = static_cast<const float*>(weights.Panel(next.panels[0].panel)) +
                 static_cast<size_t>(next.depth) * kStripFloats;
    body.ahead_stride = body.panel_stride;
  } else {
    for (size_t s = 0; s < kStrips; ++s) {
      ToFloats(static_cast<const Bf16*>(weights.Panel(panels[s].panel)) + skip,
               depth * kStripFloats, scratch.panels + s * kPanelPiece);
    }
    body.panels = scratch.panels;
    body.panel_stride = kPanelPiece;
    body.ahead = body.panels;  // what comes next has another size, and is read by the widening
    body.ahead_stride = kPanelPiece;
  }
  PanelEpilogue epilogues[kStrips];
  body.plain = piece.last;
  for (size_t s = 0; s < kStrips && piece.last; ++s) {
    epilogues[s] = PanelEpilogue(*tile.args, panels[s]);
    body.plain = body.plain && epilogues[s].IsPlain();
  }
  body.epilogues = epilogues;
  if (HWY_LIKELY(tile.tokens.size() == kTileTokens)) {
    for (size_t row = 0; row < kTileTokens; row += kTileRows) body.template Rows<kTileRows>(row);
  } else {
    ForRowTiles(static_cast<size_t>(tile.tokens.size()), body);
  }
}

// One token's inputs `depth` to their places among the groups of 16.
template <class T>
HWY_INLINE void PackRow(const T* from, int64_t stride, size_t depth, float* to) {
  size_t d = 0;
  for (; d + 16 <= depth; d += 16, to += kRowPitch * 16)
    GatherFloats(from + static_cast<int64_t>(d) * stride, stride, 16, to);
  GatherFloats(from + static_cast<int64_t>(d) * stride, stride, depth - d, to);
}

template <class T>
void PackRows(const T* from, int64_t row_stride, int64_t stride, size_t tokens, size_t depth,
              float* to) {
  for (size_t token = 0; token < tokens; ++token, from += row_stride, to += 16)
    PackRow(from, stride, depth, to);
}

// Rows of the tile's tokens over one piece of the depth.
void PackPiece(const LinearTile& tile, const Piece& piece, float* to) {
  const ConstView& x = tile.args->x.view;
  const auto tokens = static_cast<size_t>(tile.tokens.size()),
             n = static_cast<size_t>(piece.depth.size());
  if (n == 0) return;
  if (tile.rows != nullptr) return PackRows(tile.rows + piece.x, tile.row_stride, 1, tokens, n, to);
  const void* from = x.Address(tile.tokens.begin, piece.x);
  const int64_t row_stride = x.Stride(0), stride = x.Stride(1);
  switch (x.dtype()) {
    case DType::kF32:
      return PackRows(static_cast<const float*>(from), row_stride, stride, tokens, n, to);
    case DType::kBF16:
      return PackRows(static_cast<const Bf16*>(from), row_stride, stride, tokens, n, to);
    case DType::kF16:
      return PackRows(static_cast<const F16*>(from), row_stride, stride, tokens, n, to);
  }
}

void ComputeTile(const LinearTile& tile, float* scratch_floats) {
  const LinearScratch scratch(scratch_floats);
  const size_t pieces = tile.pieces.size();
  for (size_t p = 0; p < pieces; ++p) {
    const Piece piece = {.depth = tile.pieces[p].inputs,
                         .x = tile.pieces[p].x,
                         .first = p == 0,
                         .last = p + 1 == pieces};
    PackPiece(tile, piece, scratch.rows);
    size_t i = 0;
    // With one piece no sums have to wait: every panel uses the same place, which stays in L1.
    auto sums = [&] { return scratch.sums + (pieces == 1 ? 0 : i * kPanelSums); };
    // After the last panel comes the first of the next piece, or of another tile over the same
    // panels.
    auto next = [&](size_t after) {
      if (after < tile.panels.size()) return NextPanels{&tile.panels[after], piece.depth.begin};
      return NextPanels{&tile.panels[0], tile.pieces[piece.last ? 0 : p + 1].inputs.begin};
    };
    for (; i + kTileStrips <= tile.panels.size(); i += kTileStrips) {
      ComputePanels<kTileStrips>(tile, piece, &tile.panels[i], next(i + kTileStrips), sums(),
                                 scratch);
    }
    for (; i < tile.panels.size(); ++i) {
      ComputePanels<1>(tile, piece, &tile.panels[i], next(i + 1), sums(), scratch);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(ComputeTile);
}  // namespace

int64_t LinearTileScratchFloats() { return kScratchFloats; }

void ComputeLinearTile(const LinearTile& tile, float* scratch) {
  EQ_DCHECK(tile.tokens.size() <= kTileTokens);
  EQ_DCHECK(std::ssize(tile.panels) <= MaxTilePanels(std::ssize(tile.pieces)));
  HWY_DYNAMIC_DISPATCH(ComputeTile)(tile, scratch);
}

}  // namespace equitile
#endif  // HWY_ONCE

#include "equitile/kernel/linear/linear_tile.h"

#include <algorithm>
#include <cstddef>

#include "equitile/base/error.h"
#include "equitile/kernel/target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/linear/linear_tile.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/linear/linear_amx-inl.h"
#include "equitile/kernel/linear/linear_epilogue-inl.h"
#include "equitile/kernel/linear/linear_operands-inl.h"
#include "equitile/kernel/simd/gemm-inl.h"

#ifndef EQUITILE_KERNEL_LINEAR_TILE_ONCE_
#define EQUITILE_KERNEL_LINEAR_TILE_ONCE_
namespace equitile {

inline constexpr size_t kPanelSums = kTileTokens * kPanelColumns;  // sums of one panel
inline constexpr size_t kMaxTileStrips = 2;

// Parts of a thread's scratch. Rows and panels are words of 32 bits.
struct LinearScratch {
  explicit LinearScratch(float* scratch)
      : sums(scratch), rows(sums + kTilePanels * kPanelSums), panels(rows + kPieceRows) {}
  float* sums;    // [panels][kTileTokens][16]
  float* rows;    // [kPieceDepth / 16][kRowPitch][16]
  float* panels;  // [kMaxTileStrips][kPieceDepth][16], for panels that are widened, or AMX's sums
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
static_assert(sizeof(AmxLinearMemory) <= kMaxTileStrips * kPanelPiece * sizeof(float));

// Of integers: what their sums begin at and are worth.
struct RoundedColumns {
  alignas(64) int32_t offset[kStripFloats];  // where rows are offset
  const float* scales;                       // [16]
};

// All rows of a tile over one piece of kStrips panels.
template <class Operand, size_t kStrips>
struct PieceRows {
  using Math = typename Operand::Math;
  using T = typename Math::T;

  const T* a;  // [depth / 16][kRowPitch][16]
  PanelWords<T> words;
  size_t depth;  // in words
  float* sums;   // kStrips times [kTileTokens][16]
  bool first, last;
  bool plain;                      // of all epilogues
  const PanelEpilogue* epilogues;  // [kStrips]
  int64_t first_token;
  const RoundedColumns* rounded;  // [kStrips]
  const float* row_scales;        // [tokens]

  // Where rows are summed before (AmxSums): those from group_row on.
  const int32_t* group_sums = nullptr;
  size_t group_row = 0;

  // Lines of each of the next panels per 16 steps: together the register tiles touch all.
  static constexpr size_t kAheadLines = HWY_MAX(size_t{1}, 16 * kTileRows / kTileTokens);

  template <size_t kRows>
  EQ_TILE void Rows(size_t row) const {
    Tile<kRows, kStrips, Math> tile;
    if constexpr (Operand::kSummedBefore) {
      TouchNext(row, row + kRows);
      tile.Load(group_sums + (row - group_row) * kStripFloats, kStripFloats, kAmxStripSums);
    } else {
      Multiply(row, tile);
    }
    if constexpr (Operand::kRounded) {
      Tile<kRows, kStrips> floats;
      AddRounded(row, tile, floats);
      End(row, floats);
    } else {
      End(row, tile);
    }
  }

  // Of `rows` tokens, before it is written.
  EQ_TILE void FetchOutput(size_t row, size_t rows) const {
    if (!last) return;
    EQ_UNROLL
    for (size_t s = 0; s < kStrips; ++s)
      epilogues[s].FetchOutput(first_token + static_cast<int64_t>(row), rows);
  }

 private:
  float* SumsOf(size_t row) const { return sums + row * kStripFloats; }

  // The share of these rows in touching the next panels.
  EQ_TILE void TouchNext(size_t begin, size_t end) const {
    const size_t last_line = end * depth / kTileTokens;
    for (size_t line = begin * depth / kTileTokens; line < last_line; ++line) {
      EQ_UNROLL
      for (size_t s = 0; s < kStrips; ++s)
        __builtin_prefetch(words.ahead + line * kStripFloats + s * words.ahead_stride, 0, 2);
    }
  }

  template <size_t kRows>
  EQ_TILE void Multiply(size_t row, Tile<kRows, kStrips, Math>& tile) const {
    Begin(row, tile);
    FetchOutput(row, kRows);
    const T *from = a + row * kGroupWords, *panel = words.panels;
    const T* next = words.ahead + row * depth / kTileTokens * kStripFloats;
    EQ_NO_UNROLL
    for (size_t d = 16; d <= depth; d += 16, from += kRowPitch * 16, panel += kStripFloats * 16) {
      EQ_UNROLL
      for (size_t i = 0; i < kAheadLines * kStrips; ++i)
        __builtin_prefetch(next + i % kAheadLines * 16 + i / kAheadLines * words.ahead_stride, 0,
                           2);
      next += kAheadLines * 16;
      tile.template MultiplyAddFixed<AOrder::kRowMajor, 16, 16>(from, panel, words.stride);
    }
    if (depth % 16 != 0)
      tile.template MultiplyAdd<AOrder::kRowMajor, 16>(from, 16, panel, words.stride, depth % 16);
  }

  template <size_t kRows>
  EQ_TILE void Begin(size_t row, Tile<kRows, kStrips, Math>& tile) const {
    if constexpr (!Operand::kRounded) {
      if (first) {
        tile.Zero();
      } else {
        tile.Load(SumsOf(row), kStripFloats, kPanelSums);
      }
    } else if constexpr (Operand::kOffsetRows) {
      EQ_UNROLL
      for (size_t v = 0; v < tile.kVecs; ++v) {
        const auto offset = hn::Load(typename Math::D(),
                                     rounded[v / kStripVecs].offset + v % kStripVecs * kVecFloats);
        EQ_UNROLL
        for (size_t r = 0; r < kRows; ++r) tile.c[r][v] = hn::Neg(offset);
      }
    } else {
      tile.Zero();
    }
  }

  // Exact sums of this piece and, in f32, of those before it.
  template <size_t kRows>
  EQ_TILE void AddRounded(size_t row, const Tile<kRows, kStrips, Math>& tile,
                          Tile<kRows, kStrips>& floats) const {
    if (!first) floats.Load(SumsOf(row), kStripFloats, kPanelSums);
    EQ_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      EQ_UNROLL
      for (size_t v = 0; v < tile.kVecs; ++v) {
        const VF part = hn::ConvertTo(DF(), tile.c[r][v]);
        floats.c[r][v] = first ? part : hn::Add(floats.c[r][v], part);
      }
    }
    if (!last) return;
    EQ_UNROLL
    for (size_t v = 0; v < tile.kVecs; ++v) {
      const VF scale =
          hn::LoadU(DF(), rounded[v / kStripVecs].scales + v % kStripVecs * kVecFloats);
      EQ_UNROLL
      for (size_t r = 0; r < kRows; ++r) {
        floats.c[r][v] =
            hn::Mul(hn::Mul(floats.c[r][v], scale), hn::Set(DF(), row_scales[row + r]));
      }
    }
  }

  template <size_t kRows>
  EQ_TILE void End(size_t row, Tile<kRows, kStrips>& tile) const {
    if (last && plain) {
      EQ_UNROLL
      for (size_t s = 0; s < kStrips; ++s)
        epilogues[s].FinishPlain(first_token + static_cast<int64_t>(row), s, tile);
      return;
    }
    tile.Store(SumsOf(row), kStripFloats, kPanelSums);
    if (last) {
      for (size_t s = 0; s < kStrips; ++s) {
        epilogues[s].Finish(first_token + static_cast<int64_t>(row), kRows,
                            SumsOf(row) + s * kPanelSums);
      }
    }
  }
};

// The same where AMX sums: sixteen rows become output while the next are multiplied.
template <size_t kStrips>
void ComputeSums(const LinearTile& tile, const DepthPiece& piece, AmxRegisters& registers,
                 AmxLinearMemory& memory, PieceRows<AmxInt8Operand, kStrips>& body) {
  const AmxLinearOperands operands(tile, piece, body.words, kStrips, memory);
  AmxSums<ByteSigns::kBoth, 2, kStrips, AmxLinearOperands> sums(operands, registers, memory.sums);
  const auto tokens = static_cast<size_t>(tile.tokens.size());
  constexpr size_t kRows = 8;
  for (size_t group = 0, row = 0; row < tokens; ++group) {
    const size_t end = std::min(row + kAmxRows, tokens);
    body.FetchOutput(row, end - row);
    body.group_sums = sums.Of(group);
    body.group_row = operands.FirstToken(group);
    for (; row + kRows <= end; row += kRows) body.template Rows<kRows>(row);
    for (; row < end; ++row) body.template Rows<1>(row);
  }
}

// Of a tile's pieces.
struct PiecePlace {
  const DepthPiece* piece;
  bool first, last;
};

// kStrips panels of the tile, from `panels` on.
template <class Operand, size_t kStrips>
void ComputePanels(const LinearTile& tile, const PiecePlace& place, const PanelColumns* panels,
                   const NextPanels& next, float* sums, const LinearScratch& scratch,
                   AmxRegisters* registers) {
  using T = typename Operand::Math::T;
  const PackedLinear& weights = tile.args->weights;
  const DepthPiece& piece = *place.piece;

  PieceRows<Operand, kStrips> body;
  body.a = reinterpret_cast<const T*>(scratch.rows);
  body.words =
      Operand::Panels(weights, panels, kStrips, piece, next, reinterpret_cast<T*>(scratch.panels));
  body.depth = Operand::Words(piece);
  body.sums = sums;
  body.first = place.first;
  body.last = place.last;
  body.first_token = tile.tokens.begin;
  RoundedColumns rounded[kStrips];
  if constexpr (Operand::kRounded) {
    for (size_t s = 0; s < kStrips; ++s) {
      rounded[s].scales = weights.Scales(panels[s].panel);
      if constexpr (Operand::kOffsetRows)
        Operand::SumsOfOffset(weights, panels[s].panel, piece, rounded[s].offset);
    }
  }
  body.rounded = rounded;
  body.row_scales = tile.scales;
  PanelEpilogue epilogues[kStrips];
  body.plain = place.last;
  for (size_t s = 0; s < kStrips && place.last; ++s) {
    epilogues[s] = PanelEpilogue(*tile.args, panels[s]);
    body.plain = body.plain && epilogues[s].IsPlain();
  }
  body.epilogues = epilogues;
  if constexpr (Operand::kSummedBefore) {
    ComputeSums(tile, piece, *registers, *reinterpret_cast<AmxLinearMemory*>(scratch.panels), body);
  } else if (HWY_LIKELY(tile.tokens.size() == kTileTokens)) {
    for (size_t row = 0; row < kTileTokens; row += kTileRows) body.template Rows<kTileRows>(row);
  } else {
    ForRowTiles(static_cast<size_t>(tile.tokens.size()), body);
  }
}

template <class Operand>
void ComputeTileOf(const LinearTile& tile, float* scratch_floats,
                   AmxRegisters* registers = nullptr) {
  const LinearScratch scratch(scratch_floats);
  const size_t pieces = tile.pieces.size();
  for (size_t p = 0; p < pieces; ++p) {
    const DepthPiece& piece = tile.pieces[p];
    const PiecePlace place = {.piece = &piece, .first = p == 0, .last = p + 1 == pieces};
    Operand::PackRows(tile, piece, reinterpret_cast<typename Operand::Math::T*>(scratch.rows));
    size_t i = 0;
    // With one piece no sums have to wait: every panel uses the same place, which stays in L1.
    auto sums = [&] { return scratch.sums + (pieces == 1 ? 0 : i * kPanelSums); };
    // After the last panel comes the first of the next piece, or of another tile over the same
    // panels.
    auto next = [&](size_t after) {
      if (after < tile.panels.size()) return NextPanels{&tile.panels[after], piece.inputs.begin};
      return NextPanels{&tile.panels[0], tile.pieces[place.last ? 0 : p + 1].inputs.begin};
    };
    constexpr size_t kPass = Operand::kSummedBefore ? kAmxStrips : kTileStrips;
    for (; i + kPass <= tile.panels.size(); i += kPass) {
      ComputePanels<Operand, kPass>(tile, place, &tile.panels[i], next(i + kPass), sums(), scratch,
                                    registers);
    }
    for (; i < tile.panels.size(); ++i) {
      ComputePanels<Operand, 1>(tile, place, &tile.panels[i], next(i + 1), sums(), scratch,
                                registers);
    }
  }
}

// Registers are set up per tile, and panels read whole for however few tokens: of 1 to 4 tokens AMX
// is at 0.7 to 1.0 of VNNI, of 64 inputs at 0.8 to 0.95, of 8 tokens at 0.96 with 128 and 1.1 with
// 192.
bool AmxPays(const LinearTile& tile) {
  return tile.tokens.size() >= 8 && tile.args->weights.In() >= 192;
}

void ComputeInt8Tile(const LinearTile& tile, float* scratch, IntegerProducts products) {
  if (products == IntegerProducts::kPairs) return ComputeTileOf<WidenedInt8Operand>(tile, scratch);
  if (products == IntegerProducts::kVnni || !AmxPays(tile))
    return ComputeTileOf<VnniInt8Operand>(tile, scratch);
  AmxRegisters registers(std::min(kAmxRows, static_cast<size_t>(tile.tokens.size())));
  ComputeTileOf<AmxInt8Operand>(tile, scratch, &registers);
}

void ComputeTile(const LinearTile& tile, float* scratch) {
  const IntegerProducts products = ActiveProducts();
  switch (ComputeOf(tile.args->weights.type())) {
    case Compute::kF32:
      return ComputeTileOf<FloatOperand>(tile, scratch);
    case Compute::kInt16:
      return products == IntegerProducts::kPairs
                 ? ComputeTileOf<Int16Operand<PairMath>>(tile, scratch)
                 : ComputeTileOf<Int16Operand<VnniPairMath>>(tile, scratch);
    case Compute::kInt8:
      return ComputeInt8Tile(tile, scratch, products);
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

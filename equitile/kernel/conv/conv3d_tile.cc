#include "equitile/kernel/conv/conv3d_tile.h"

#include <cstddef>

#include "equitile/kernel/target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/conv/conv3d_tile.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/conv/conv3d_epilogue-inl.h"
#include "equitile/kernel/simd/gemm-inl.h"
#include "equitile/kernel/simd/integer_products-inl.h"

#ifndef EQUITILE_KERNEL_CONV3D_TILE_ONCE_
#define EQUITILE_KERNEL_CONV3D_TILE_ONCE_
namespace equitile {

// A thread's scratch for one Winograd block, in floats.
struct WinogradScratch {
  WinogradScratch(const PackedConv& weights, int64_t out_frames, int64_t tiles)
      : in_pixel(PaddedChannels(weights.In())),
        out_pixel(PaddedChannels(weights.Out())),
        in_tile((out_frames + weights.FrameTaps() - 1) * in_pixel),
        in_place(tiles * in_tile),
        out_place(tiles * out_frames * out_pixel),
        out(16 * in_place),
        pixels(out + 16 * out_place),
        size(pixels + 4 * out_pixel) {}
  int64_t in_pixel, out_pixel;
  // From 0: [16][tiles][in frames][in_pixel], so that a chain runs over neighbouring frames of a
  // tile.
  int64_t in_tile, in_place;
  // [16][out frames][tiles][out_pixel]
  int64_t out_place, out;
  int64_t pixels;  // [4][out_pixel]
  int64_t size;
};

}  // namespace equitile
#endif  // EQUITILE_KERNEL_CONV3D_TILE_ONCE_

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

static_assert(kStripFloats == kChannelStep);

// Rows of a product with kStrips panels: sums[rows][.] (+)= a[rows][depth] * panels.
template <size_t kStrips, class Math = FloatMath>
struct ConvRows {
  using T = typename Math::T;
  const T* a;
  size_t a_stride;
  const T* panels;
  size_t panel_stride;
  size_t depth;
  T* sums;
  size_t sum_stride;
  bool first;

  template <size_t kRows>
  EQ_TILE void Rows(size_t row) const {
    Tile<kRows, kStrips, Math> tile;
    T* to = sums + row * sum_stride;
    if (first) {
      tile.Zero();
    } else {
      tile.Load(to, sum_stride, kStripFloats);
    }
    tile.template MultiplyAdd<AOrder::kRowMajor>(a + row * a_stride, a_stride, panels, panel_stride,
                                                 depth);
    tile.Store(to, sum_stride, kStripFloats);
  }
};

// Calls body.Panels<strips>(panel) over all panels, as many at once as the register tile holds.
template <class Body>
HWY_INLINE void ForPanels(int64_t panels, const Body& body) {
  int64_t panel = 0;
  constexpr auto kStep = static_cast<int64_t>(kTileStrips);
  for (; panel + kStep <= panels; panel += kStep) body.template Panels<kTileStrips>(panel);
  if constexpr (kTileStrips > 1) {
    for (; panel < panels; ++panel) body.template Panels<1>(panel);
  }
}

// ---- Winograd ----

// Numbers of the transformed plane: f32, or int16 whose words the tile multiplies.
struct FloatPlane {
  using Math = FloatMath;
  using Number = float;
  static constexpr int64_t kNumbers = 1;  // in a word

  explicit FloatPlane(const PackedConv& weights) : weights_(weights) {}

  static HWY_INLINE VF Read(const float* pixel, size_t /*channel*/) {
    return hn::LoadU(DF(), pixel);
  }
  static HWY_INLINE void Write(VF v, float* to) { hn::StoreU(v, DF(), to); }
  const float* Panel(int64_t place, int64_t panel) const { return weights_.Panel(place, panel); }
  static HWY_INLINE VF Sum(const float* from, size_t /*place*/, size_t /*channel*/) {
    return hn::LoadU(DF(), from);
  }

 private:
  const PackedConv& weights_;
};

// Pixels are rounded as they are read, then transformed exactly: what a pixel becomes depends on
// nothing but itself. Sums are exact too, so bits are the same on every target.
template <class PairsMath>
struct Int16Plane {
  using Math = PairsMath;
  using Number = int16_t;
  static constexpr int64_t kNumbers = 2;

  explicit Int16Plane(const PackedConv& weights)
      : weights_(weights),
        scales_(weights.InputScales()),
        sum_scales_(weights.SumScales()),
        out_pixel_(static_cast<size_t>(PaddedChannels(weights.Out()))) {}

  HWY_INLINE VI Read(const float* pixel, size_t channel) const {
    return RoundToInt(hn::Mul(hn::LoadU(DF(), pixel), hn::LoadU(DF(), scales_ + channel)));
  }
  static HWY_INLINE void Write(VI v, int16_t* to) {
    const hn::Rebind<int16_t, DI> d16;
    hn::StoreU(hn::DemoteTo(d16, v), d16, to);
  }
  const int32_t* Panel(int64_t place, int64_t panel) const { return weights_.Words(place, panel); }
  HWY_INLINE VF Sum(const int32_t* from, size_t place, size_t channel) const {
    return hn::Mul(hn::ConvertTo(DF(), hn::LoadU(DI(), from)),
                   hn::LoadU(DF(), sum_scales_ + place * out_pixel_ + channel));
  }

 private:
  const PackedConv& weights_;
  const float* scales_;
  const float* sum_scales_;
  size_t out_pixel_;
};

// The 4 x 4 pixels under a tile of one frame, transformed, one vector of channels at a time:
// rows and columns alike (a, b, c, d) -> (a - c, b + c, c - b, b - d).
template <class Plane>
HWY_INLINE void TransformPixels(const Plane& plane, const float* from, size_t row_stride,
                                size_t pixel, typename Plane::Number* to, size_t place_stride) {
  for (size_t i = 0; i < pixel; i += kVecFloats) {
    typename Plane::Math::V rows[4][4];  // transformed along columns
    EQ_UNROLL
    for (size_t y = 0; y < 4; ++y) {
      const float* p = from + y * row_stride + i;
      const auto x0 = plane.Read(p, i), x1 = plane.Read(p + pixel, i);
      const auto x2 = plane.Read(p + 2 * pixel, i), x3 = plane.Read(p + 3 * pixel, i);
      rows[y][0] = hn::Sub(x0, x2);
      rows[y][1] = hn::Add(x1, x2);
      rows[y][2] = hn::Sub(x2, x1);
      rows[y][3] = hn::Sub(x1, x3);
    }
    EQ_UNROLL
    for (size_t x = 0; x < 4; ++x) {
      auto* t = to + x * place_stride + i;
      plane.Write(hn::Sub(rows[0][x], rows[2][x]), t);
      plane.Write(hn::Add(rows[1][x], rows[2][x]), t + 4 * place_stride);
      plane.Write(hn::Sub(rows[2][x], rows[1][x]), t + 8 * place_stride);
      plane.Write(hn::Sub(rows[1][x], rows[3][x]), t + 12 * place_stride);
    }
  }
}

// Back: (a, b, c, d) -> (a + b + c, b - c - d), rows and columns; pixels [2][2][pixel].
template <class Plane>
HWY_INLINE void TransformBack(const Plane& plane, const typename Plane::Math::T* from,
                              size_t place_stride, size_t pixel, float* to) {
  const DF d;
  for (size_t i = 0; i < pixel; i += kVecFloats) {
    VF top[4], bottom[4];
    EQ_UNROLL
    for (size_t x = 0; x < 4; ++x) {
      const auto* p = from + x * place_stride + i;
      const VF m0 = plane.Sum(p, x, i), m1 = plane.Sum(p + 4 * place_stride, 4 + x, i);
      const VF m2 = plane.Sum(p + 8 * place_stride, 8 + x, i);
      const VF m3 = plane.Sum(p + 12 * place_stride, 12 + x, i);
      top[x] = hn::Add(hn::Add(m0, m1), m2);
      bottom[x] = hn::Sub(hn::Sub(m1, m2), m3);
    }
    hn::StoreU(hn::Add(hn::Add(top[0], top[1]), top[2]), d, to + i);
    hn::StoreU(hn::Sub(hn::Sub(top[1], top[2]), top[3]), d, to + pixel + i);
    hn::StoreU(hn::Add(hn::Add(bottom[0], bottom[1]), bottom[2]), d, to + 2 * pixel + i);
    hn::StoreU(hn::Sub(hn::Sub(bottom[1], bottom[2]), bottom[3]), d, to + 3 * pixel + i);
  }
}

// One place of the transformed plane, one piece of the depth.
template <class Plane>
struct WinogradPlace {
  using T = typename Plane::Math::T;
  const Plane& plane;
  const WinogradBlock& block;
  const WinogradScratch& s;
  float* scratch;
  int64_t place;
  Range depth;  // in words

  template <size_t kStrips>
  HWY_INLINE void Panels(int64_t panel) const {
    const PackedConv& weights = *block.args->weights;
    ConvRows<kStrips, typename Plane::Math> body;
    body.a_stride = static_cast<size_t>(s.in_tile / Plane::kNumbers);
    body.panels = plane.Panel(place, panel) + depth.begin * kChannelStep;
    body.panel_stride = static_cast<size_t>(weights.Depth() * kChannelStep);
    body.depth = static_cast<size_t>(depth.size());
    body.sum_stride = static_cast<size_t>(s.out_pixel);
    body.first = depth.begin == 0;
    const int64_t tiles = block.tiles.size();
    for (int64_t t = 0; t < block.out_frames; ++t) {
      body.a = reinterpret_cast<const T*>(scratch) +
               (place * s.in_place + t * s.in_pixel) / Plane::kNumbers + depth.begin;
      body.sums = reinterpret_cast<T*>(scratch) + s.out + place * s.out_place +
                  t * tiles * s.out_pixel + panel * kChannelStep;
      ForRowTiles(static_cast<size_t>(tiles), body);
    }
  }
};

template <class Plane>
void ComputeWinogradIn(const WinogradBlock& block, float* scratch) {
  const ConvArgs& args = *block.args;
  const PackedConv& weights = *args.weights;
  const Plane plane(weights);
  const int64_t tiles = block.tiles.size();
  const WinogradScratch s(weights, block.out_frames, tiles);
  const int64_t in_frames = block.out_frames + weights.FrameTaps() - 1;
  const auto row_of = [&](int64_t tile) {
    return (block.tiles.begin + tile) / block.tiles_wide * 2 - args.row_phase;
  };
  const auto column_of = [&](int64_t tile) {
    return (block.tiles.begin + tile) % block.tiles_wide * 2;
  };

  for (int64_t f = 0; f < in_frames; ++f) {
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t first =
          (row_of(tile) - 1) * args.in.row_stride + (column_of(tile) - 1) * s.in_pixel;
      TransformPixels(plane, args.in.frames[static_cast<size_t>(f)] + first,
                      static_cast<size_t>(args.in.row_stride), static_cast<size_t>(s.in_pixel),
                      reinterpret_cast<typename Plane::Number*>(scratch) + tile * s.in_tile +
                          f * s.in_pixel,
                      static_cast<size_t>(s.in_place));
    }
  }

  const int64_t words = weights.Depth() / Plane::kNumbers;
  const int64_t pieces = CeilDiv(words, kConvPieceDepth);
  for (int64_t place = 0; place < 16; ++place) {
    for (int64_t p = 0; p < pieces; ++p) {
      ForPanels(weights.Panels(),
                WinogradPlace<Plane>{plane, block, s, scratch, place, EvenPart(words, p, pieces)});
    }
  }

  const PixelEpilogue epilogue(args);
  for (int64_t t = 0; t < block.out_frames; ++t) {
    for (int64_t tile = 0; tile < tiles; ++tile) {
      TransformBack(plane,
                    reinterpret_cast<const typename Plane::Math::T*>(scratch) + s.out +
                        (t * tiles + tile) * s.out_pixel,
                    static_cast<size_t>(s.out_place), static_cast<size_t>(s.out_pixel),
                    scratch + s.pixels);
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t y = row_of(tile) + i / 2, x = column_of(tile) + i % 2;
        if (y < 0 || y >= args.height || x >= args.width) continue;
        epilogue.Finish(scratch + s.pixels + i * s.out_pixel, t, y, x);
      }
    }
  }
}

void ComputeWinograd(const WinogradBlock& block, float* scratch) {
  if (block.args->weights->compute() == Compute::kF32) {
    ComputeWinogradIn<FloatPlane>(block, scratch);
  } else if (ActiveProducts() == IntegerProducts::kPairs) {
    ComputeWinogradIn<Int16Plane<PairMath>>(block, scratch);
  } else {
    ComputeWinogradIn<Int16Plane<VnniPairMath>>(block, scratch);
  }
}

// ---- Direct and upsampled ----

// One run of neighbouring inputs in the chain of a pixel: [depth] floats from `from`, for the pixel
// (0, 0) of the block; weights from depth `at` on.
struct Segment {
  const float* from;
  int64_t at, depth;
};

struct DirectPiece {
  const DirectBlock& block;
  const Segment& segment;
  float* sums;  // [pixels][out_pixel]

  template <size_t kStrips>
  HWY_INLINE void Panels(int64_t panel) const {
    const PackedConv& weights = *block.args->weights;
    const int64_t out_pixel = PaddedChannels(weights.Out());
    ConvRows<kStrips> body;
    body.a_stride = static_cast<size_t>(PaddedChannels(weights.In()));
    body.panels = weights.Panel(block.variant, panel) + segment.at * kChannelStep;
    body.panel_stride = static_cast<size_t>(weights.Depth() * kChannelStep);
    body.depth = static_cast<size_t>(segment.depth);
    body.sum_stride = static_cast<size_t>(out_pixel);
    body.first = segment.at == 0;
    for (int64_t y = 0; y < block.rows.size(); ++y) {
      body.a = segment.from + y * block.args->in.row_stride;
      body.sums = sums + y * block.columns.size() * out_pixel + panel * kChannelStep;
      ForRowTiles(static_cast<size_t>(block.columns.size()), body);
    }
  }
};

// Calls segment(Segment) over the chain of the block's pixels, in order. Row taps see rows from
// `row` on, each `columns` neighbouring pixels from `column` on.
template <class Body>
HWY_INLINE void ForSegments(const DirectBlock& block, const Body& body) {
  const ConvArgs& args = *block.args;
  const PackedConv& weights = *args.weights;
  const int64_t pixel = PaddedChannels(weights.In());
  const bool upsampled = weights.form() == ConvForm::kUpsampled;
  const int64_t rows = upsampled ? 2 : weights.RowTaps();
  const int64_t columns = upsampled ? 2 : weights.ColumnTaps();
  const int64_t row = block.rows.begin - weights.RowTaps() / 2 + block.variant / 2;
  const int64_t column = block.columns.begin - weights.ColumnTaps() / 2 + block.variant % 2;
  const int64_t run = columns * pixel, pieces = CeilDiv(run, kConvPieceDepth);
  int64_t at = 0;
  for (int64_t f = 0; f < weights.FrameTaps(); ++f) {
    for (int64_t y = 0; y < rows; ++y) {
      const float* from = args.in.frames[static_cast<size_t>(block.frame + f)] +
                          (row + y) * args.in.row_stride + column * pixel;
      for (int64_t p = 0; p < pieces; ++p) {
        const Range part = EvenPart(run, p, pieces);
        body(Segment{from + part.begin, at + part.begin, part.size()});
      }
      at += run;
    }
  }
}

void ComputeDirect(const DirectBlock& block, float* sums) {
  const ConvArgs& args = *block.args;
  const PackedConv& weights = *args.weights;
  const int64_t out_pixel = PaddedChannels(weights.Out());
  ForSegments(block, [&](const Segment& segment) {
    ForPanels(weights.Panels(), DirectPiece{block, segment, sums});
  });
  const PixelEpilogue epilogue(args);
  const int64_t scale = weights.form() == ConvForm::kUpsampled ? 2 : 1;
  for (int64_t y = block.rows.begin; y < block.rows.end; ++y) {
    for (int64_t x = block.columns.begin; x < block.columns.end; ++x, sums += out_pixel) {
      epilogue.Finish(sums, block.frame, y * scale + block.variant / 2,
                      x * scale + block.variant % 2);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(ComputeWinograd);
HWY_EXPORT(ComputeDirect);
}  // namespace

int64_t WinogradScratchFloats(const PackedConv& weights, int64_t out_frames, int64_t tiles) {
  return WinogradScratch(weights, out_frames, tiles).size;
}

void ComputeWinogradBlock(const WinogradBlock& block, float* scratch) {
  HWY_DYNAMIC_DISPATCH(ComputeWinograd)(block, scratch);
}

int64_t DirectScratchFloats(const PackedConv& weights, int64_t pixels) {
  return pixels * PaddedChannels(weights.Out());
}

void ComputeDirectBlock(const DirectBlock& block, float* scratch) {
  HWY_DYNAMIC_DISPATCH(ComputeDirect)(block, scratch);
}

}  // namespace equitile
#endif  // HWY_ONCE

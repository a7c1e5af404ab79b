// Convolutions over frames of pixels, [frames][height][width][channels], as products on the
// multiply-add tile; with what follows them in a residual block done before a pixel leaves the
// cache.
#pragma once

#include <cstdint>
#include <span>

#include "equitile/base/thread_pool.h"
#include "equitile/kernel/conv/packed_conv.h"
#include "equitile/kernel/workspace.h"

namespace equitile {

// Frames of one layout: where pixel (0, 0) of each lies. A pixel is PaddedChannels(channels)
// floats, the padding 0; pixels of a row are side by side, rows `row_stride` floats apart.
struct ConstFrames {
  std::span<const float* const> frames;
  int64_t row_stride = 0;
};
struct Frames {
  std::span<float* const> frames;
  int64_t row_stride = 0;
};

// What happens to the sums of a pixel, in this order. Absent parts are left out.
struct ConvEpilogue {
  ConstFrames residual;          // added; may be `out` itself
  Frames out;                    // what the convolution gives, after bias and residual
  std::span<const float> gamma;  // [PaddedChannels(out)], zeros beyond `out`; with `normed`
  Frames normed;     // x / max(|x|, 1e-12) * sqrt(out) * gamma over the channels of a pixel,
  bool silu = true;  // then x sigmoid(x)
};

struct ConvArgs {
  const PackedConv* weights = nullptr;
  // Frame taps - 1 more than output frames, oldest first: output frame t sees in[t], in[t + 1], ...
  // Where the kernel is wider than one pixel the frames have a rim of one pixel all around (zeros,
  // or a neighbour's pixels), and one more on the right and below for the Winograd form where width
  // or height is odd (anything finite).
  ConstFrames in;
  int64_t height = 0, width = 0;  // of the input; upsampled: the output has twice of both
  // Of the row 0 here in the picture that it is part of: 1 if that is odd. The Winograd form works
  // on pairs of rows; with the parity of the whole picture a part of it gets the same bits. Row -2
  // must then be readable (anything finite).
  int64_t row_phase = 0;
  ConvEpilogue epilogue;
};

// Bits of a pixel depend on the pixels that it sees, the weights, their form, and the SIMD target:
// not on threads, on how many frames a call has, or on where the picture is cut. Throws InputError
// where the number of frames does not fit.
void Conv3d(const ConvArgs& args, ThreadPool& pool, Workspace& workspace);

}  // namespace equitile

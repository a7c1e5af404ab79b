#include "equitile/kernel/conv/conv3d.h"

#include <algorithm>

#include "equitile/base/error.h"
#include "equitile/kernel/conv/conv3d_tile.h"

namespace equitile {
namespace {

// Rows of a product that pass over the same panel while it is in L1. More of them use it better,
// but transformed pixels should stay in L2 from one place to the next.
constexpr int64_t kBlockRows = 96;
constexpr int64_t kFewRows = 12;  // a multiple of the rows of every target's register tile
// So that the last blocks end at about the same time.
constexpr int64_t kBlocksPerThread = 8;

void CheckFrames(size_t count, int64_t wanted, const char* name) {
  if (count == 0 || static_cast<int64_t>(count) == wanted) return;
  throw InputError("[kernel] convolution {}: {} frames; must be {}", name, count, wanted);
}

int64_t OutFrames(const ConvArgs& args) {
  const ConvEpilogue& e = args.epilogue;
  const int64_t frames =
      static_cast<int64_t>(args.in.frames.size()) - args.weights->FrameTaps() + 1;
  if (frames < 1) {
    throw InputError("[kernel] convolution of {} frame taps: {} frames are too few",
                     args.weights->FrameTaps(), args.in.frames.size());
  }
  if (e.out.frames.empty() && e.normed.frames.empty()) {
    throw InputError("[kernel] convolution without output");
  }
  CheckFrames(e.out.frames.size(), frames, "output");
  CheckFrames(e.normed.frames.size(), frames, "normed output");
  CheckFrames(e.residual.frames.size(), frames, "residual");
  const int64_t padded = PaddedChannels(args.weights->Out());
  if (!e.normed.frames.empty() && static_cast<int64_t>(e.gamma.size()) != padded) {
    throw InputError("[kernel] convolution gamma of {}: must have {} elements", e.gamma.size(),
                     padded);
  }
  return frames;
}

// Items of `total` per block: `most`, or fewer where threads would wait for the last block.
int64_t PerBlock(int64_t total, int64_t most, int threads) {
  const int64_t even = CeilDiv(total, kBlocksPerThread * threads);
  return std::clamp(RoundUp(even, kFewRows), kFewRows, std::max(most, kFewRows));
}

void Winograd(const ConvArgs& args, int64_t frames, ThreadPool& pool, Workspace& workspace) {
  const int64_t tiles_wide = CeilDiv(args.width, 2);
  const int64_t tiles = CeilDiv(args.height + args.row_phase, 2) * tiles_wide;
  const int64_t per_block = PerBlock(tiles, kBlockRows / frames, pool.Threads());
  workspace.ReservePerThread<float>(pool.Threads(),
                                    WinogradScratchFloats(*args.weights, frames, per_block));
  pool.ParallelFor(CeilDiv(tiles, per_block), [&](int64_t task, int thread) {
    const int64_t first = task * per_block;
    ComputeWinogradBlock({.args = &args,
                          .out_frames = frames,
                          .tiles = {first, std::min(tiles, first + per_block)},
                          .tiles_wide = tiles_wide},
                         workspace.ForThread<float>(thread));
  });
}

// Blocks are whole rows where those are short, else parts of one row.
void Direct(const ConvArgs& args, int64_t frames, ThreadPool& pool, Workspace& workspace) {
  const int64_t column_parts = CeilDiv(args.width, kBlockRows);
  const int64_t rows_per_block =
      column_parts > 1 ? 1 : std::max<int64_t>(1, kBlockRows / args.width);
  const int64_t row_parts = CeilDiv(args.height, rows_per_block);
  const int64_t variants = args.weights->form() == ConvForm::kUpsampled ? 4 : 1;
  const int64_t widest = CeilDiv(args.width, column_parts);
  workspace.ReservePerThread<float>(pool.Threads(),
                                    DirectScratchFloats(*args.weights, widest * rows_per_block));
  const int64_t parts = row_parts * column_parts;
  pool.ParallelFor(frames * variants * parts, [&](int64_t task, int thread) {
    const int64_t first_row = task % parts / column_parts * rows_per_block;
    ComputeDirectBlock({.args = &args,
                        .frame = task / parts / variants,
                        .variant = task / parts % variants,
                        .rows = {first_row, std::min(args.height, first_row + rows_per_block)},
                        .columns = EvenPart(args.width, task % column_parts, column_parts)},
                       workspace.ForThread<float>(thread));
  });
}

}  // namespace

void Conv3d(const ConvArgs& args, ThreadPool& pool, Workspace& workspace) {
  const int64_t frames = OutFrames(args);
  if (args.height == 0 || args.width == 0) return;
  if (args.weights->form() == ConvForm::kWinograd) {
    Winograd(args, frames, pool, workspace);
  } else {
    Direct(args, frames, pool, workspace);
  }
}

}  // namespace equitile

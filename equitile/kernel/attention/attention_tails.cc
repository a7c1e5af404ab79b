#include "equitile/kernel/attention/attention_tails.h"

#include <algorithm>
#include <cmath>

namespace equitile {
namespace {

// In double, so that the rounding to f32 hides which libm computed it.
float Log2Tokens(const BlockGrid& grid, int64_t block) {
  return static_cast<float>(std::log2(static_cast<double>(grid.KvBlockTokens(block).size())));
}

}  // namespace

TailMeans::TailMeans(const AttentionArgs& args, Progress& progress)
    : args_(args), progress_(progress) {
  if (!args.tails.means.empty()) return;
  for (const AttentionRows::Row& row : args.rows->rows) {
    if (args.tails.Has(row.lane)) lanes_.push_back(row.lane);
  }
  std::ranges::sort(lanes_);
  const auto rest = std::ranges::unique(lanes_);
  lanes_.erase(rest.begin(), rest.end());
}

int64_t TailMeans::SharedBytes() const {
  return std::ssize(lanes_) * args_.grid.KvBlocks() * 2 * args_.head_dim *
         static_cast<int64_t>(sizeof(float));
}

int64_t TailMeans::ThreadBytes() const {
  return args_.tails.lanes.empty() ? 0 : 2 * kChunkStrips * StripPitch(args_.head_dim);
}

void TailMeans::Place(std::byte* shared) {
  if (lanes_.empty()) return;
  made_.resize(static_cast<size_t>(args_.lanes.Count()));
  auto* at = reinterpret_cast<float*>(shared);
  for (int32_t lane : lanes_) {
    made_[static_cast<size_t>(lane)] = {at, at + args_.head_dim, 2 * args_.head_dim};
    at += args_.grid.KvBlocks() * 2 * args_.head_dim;
  }
}

void TailMeans::Make(int thread) {
  const int64_t kv_blocks = args_.grid.KvBlocks();
  const int64_t total = std::ssize(lanes_) * kv_blocks;
  for (int64_t i; !progress_.Failed() && (i = next_++) < total;) {
    MakeBlock(lanes_[static_cast<size_t>(i / kv_blocks)], i % kv_blocks);
    done_.fetch_add(1, std::memory_order_release);
    progress_.Tick(thread);
  }
  progress_.WaitUntil([&] { return done_.load(std::memory_order_acquire) == total; }, thread);
}

void TailMeans::MakeBlock(int64_t lane, int64_t kv_block) const {
  const LaneMeans& means = Of(lane);
  auto make = [&](const TokenSource& source, const float* to) {
    BlockMeans({.source = &source,
                .lanes = args_.lanes,
                .lane = lane,
                .grid = args_.grid,
                .head_dim = args_.head_dim,
                .token_at_position = args_.KvOrder(lane),
                .blocks = {kv_block, kv_block + 1},
                .stride = means.stride},
               const_cast<float*>(to) + kv_block * means.stride);
  };
  make(args_.k, means.k);
  make(args_.v, means.v);
}

void TailMeans::ListSkipped(const RowTask& task, std::vector<int32_t>& skipped) const {
  skipped.clear();
  if (!args_.tails.Has(task.lane)) return;
  const BlockMask* whole = args_.tails.kept;
  const int64_t q_block = args_.QBlock(task.rows[0]);
  auto kept = task.kv_blocks.begin();
  for (int32_t block = 0; block < args_.grid.KvBlocks(); ++block) {
    const bool listed = kept != task.kv_blocks.end() && *kept == block;
    kept += listed;
    if (whole != nullptr ? !whole->Get(task.lane, q_block, block) : !listed)
      skipped.push_back(block);
  }
}

MeansReader::MeansReader(const AttentionArgs& args, int64_t lane, const LaneMeans& means,
                         std::span<const int32_t> skipped, std::byte* scratch)
    : args_(args),
      means_(means),
      center_(args.KCenter(lane)),
      skipped_(skipped),
      pitch_(StripPitch(args.head_dim)),
      k_(scratch),
      v_(scratch + kChunkStrips * pitch_),
      log2_full_(Log2Tokens(args.grid, 0)),
      log2_last_(Log2Tokens(args.grid, args.grid.KvBlocks() - 1)) {}

Chunk MeansReader::Next() {
  const auto count = std::min<int64_t>(kChunkStrips * kStripTokens, std::ssize(skipped_) - next_);
  for (int64_t i = 0; i < count; ++i) Copy(skipped_[static_cast<size_t>(next_ + i)], i);
  next_ += count;
  Chunk chunk;
  for (int64_t i = 0; i < count; i += kStripTokens) {
    const int64_t at = i / kStripTokens * pitch_;
    chunk.Add(k_ + at, v_ + at, 0, std::min(kStripTokens, count - i));
  }
  chunk.log2_count = log2_count_;
  return chunk;
}

void MeansReader::Copy(int64_t block, int64_t to) {
  CopyRow(means_.k + block * means_.stride, k_, to);
  CopyRow(means_.v + block * means_.stride, v_, to);
  if (center_ != nullptr) Center(to);
  log2_count_[to] = block == args_.grid.KvBlocks() - 1 ? log2_last_ : log2_full_;
}

// The key at `to` as the kept keys are: without the center.
void MeansReader::Center(int64_t to) {
  float* k = TokenAt(k_, to);
  for (int64_t dim = 0; dim < args_.head_dim; ++dim) k[dim / 16 * 256 + dim % 16] -= center_[dim];
}

float* MeansReader::TokenAt(std::byte* strips, int64_t to) const {
  return reinterpret_cast<float*>(strips + to / kStripTokens * pitch_) + to % kStripTokens * 16;
}

// To token `to` of the strips (StripLayout::kKey); dims beyond head_dim are not read.
void MeansReader::CopyRow(const float* from, std::byte* strips, int64_t to) const {
  float* out = TokenAt(strips, to);
  for (int64_t dim = 0; dim < args_.head_dim; dim += kHeadDimStep)
    std::copy_n(from + dim, kHeadDimStep, out + dim / 16 * 256 + dim % 16);
}

}  // namespace equitile

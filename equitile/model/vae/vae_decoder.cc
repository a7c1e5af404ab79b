#include "equitile/model/vae/vae_decoder.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr int32_t kRimTag = 7001, kFrameTag = 7002;

// Frames that go through a block together. More of them use the transformed weights and pixels
// better, as long as that costs little memory.
constexpr int64_t kGroupBytes = int64_t{8} << 20;
constexpr int64_t kMostGroup = 4;

}  // namespace

int64_t VaeGroupFrames(const VaePlane& plane) {
  return std::clamp<int64_t>(kGroupBytes / std::max<int64_t>(1, plane.Bytes()), 1, kMostGroup);
}

struct VaeDecoder::Resnet {
  Resnet(const VaeResnet& w, VaeFramePool& in, VaeFramePool& out)
      : weights(w), window1(in, w.conv1.FrameTaps()), window2(out, w.conv2.FrameTaps()) {}
  const VaeResnet& weights;
  VaeWindow window1, window2;
  VaeFrames shortcut;
};

struct VaeDecoder::Block {
  VaeFrames x;  // what its residual blocks add to; in channels, then out channels
  std::vector<std::unique_ptr<Resnet>> resnets;
  std::unique_ptr<VaeWindow> time, upsample;
  bool first_frame = true;
};

VaeDecoder::VaeDecoder(const VaeWeights& weights, int64_t latent_height, int64_t latent_width,
                       ThreadPool& pool, Communicator* comm)
    : weights_(weights),
      latent_height_(latent_height),
      latent_width_(latent_width),
      pool_(pool),
      comm_(comm),
      rows_{0, latent_height} {
  if (latent_height < 1 || latent_width < 1) {
    throw InputError("[model] latents of {} x {}: must be at least 1 x 1", latent_height,
                     latent_width);
  }
  if (comm_ != nullptr) {
    rank_ = comm_->rank();
    ranks_ = weights_.up.size() < 2
                 ? 1
                 : static_cast<int32_t>(std::min<int64_t>(comm_->size(), latent_height));
    idle_ = rank_ >= ranks_;
    if (idle_) return;
    rows_ = EvenPart(latent_height, rank_, ranks_);
  }
  const VaeConfig& config = weights_.config;
  const int64_t mid = config.MidChannels();
  latent_ = VaeFrames(Plane(0, config.z_dim, false));
  conv_in_ = std::make_unique<VaeWindow>(PoolOf(0, config.z_dim), 3);
  for (VaeFrames* frames : {&mid_x_, &attention_in_, &q_, &k_, &v_, &attended_}) {
    *frames = VaeFrames(Plane(0, mid, false));
  }
  for (const VaeResnet& resnet : weights_.mid) {
    mid_.push_back(std::make_unique<Resnet>(resnet, PoolOf(0, mid), PoolOf(0, mid)));
  }
  const int64_t pixels = latent_height * latent_width;
  attention_rows_ =
      AttentionRows::Dense(Lanes{}, BlockGrid{.q_tokens = pixels, .kv_tokens = pixels});
  for (size_t b = 0; b < weights_.up.size(); ++b) {
    const VaeUpBlock& up = weights_.up[b];
    Block& block = *blocks_.emplace_back(std::make_unique<Block>());
    block.x = VaeFrames(Plane(b, up.shape.in, false));
    for (size_t r = 0; r < up.resnets.size(); ++r) {
      Resnet& resnet = *block.resnets.emplace_back(std::make_unique<Resnet>(
          up.resnets[r], PoolOf(b, r == 0 ? up.shape.in : up.shape.out), PoolOf(b, up.shape.out)));
      if (up.resnets[r].HasShortcut()) resnet.shortcut = VaeFrames(Plane(b, up.shape.out, false));
    }
    if (up.shape.upsample_time) {
      block.time = std::make_unique<VaeWindow>(PoolOf(b, up.shape.out), 3);
    }
    if (up.shape.upsample) block.upsample = std::make_unique<VaeWindow>(PoolOf(b, up.shape.out), 1);
  }
  const size_t last = weights_.up.size() - 1;
  conv_out_ = std::make_unique<VaeWindow>(PoolOf(last, weights_.up[last].shape.out), 1);
  parts_ = std::make_unique<VaeWindow>(PoolOf(last, weights_.conv_out.Out()), 3);
}

VaeDecoder::~VaeDecoder() = default;

// Whole frames at level 0, this rank's rows at the others.
VaePlane VaeDecoder::Plane(size_t level, int64_t channels, bool rim) const {
  const int64_t height = level == 0 ? latent_height_ : rows_.size();
  return {
      .height = height << level, .width = latent_width_ << level, .channels = channels, .rim = rim};
}

VaeFramePool& VaeDecoder::PoolOf(size_t level, int64_t channels) {
  auto& pool = pools_[{level, channels}];
  if (pool == nullptr) pool = std::make_unique<VaeFramePool>(Plane(level, channels, true));
  return *pool;
}

int64_t VaeDecoder::Bytes() const {
  int64_t bytes = attention_workspace_.Bytes() + workspace_.Bytes() + packed_.Bytes() +
                  static_cast<int64_t>(rgb_.size() * sizeof(float));
  for (const auto& [key, pool] : pools_) bytes += pool->Bytes();
  for (const VaeFrames* frames : {&latent_, &mid_x_, &attention_in_, &q_, &k_, &v_, &attended_}) {
    bytes += frames->Bytes();
  }
  for (const auto& block : blocks_) {
    bytes += block->x.Bytes();
    for (const auto& resnet : block->resnets) bytes += resnet->shortcut.Bytes();
  }
  return bytes;
}

void VaeDecoder::Push(const ConstView& latent, VaeFrameSink sink, VaeTap tap) {
  const VaeConfig& config = weights_.config;
  const Shape wanted = {config.z_dim, latent_height_, latent_width_};
  if (latent.shape() != wanted || latent.dtype() != DType::kF32) {
    throw InputError("[model] latent frame {} of {}: must be {} of f32", latent.shape().ToString(),
                     DTypeName(latent.dtype()), wanted.ToString());
  }
  if (idle_) return;
  sink_ = sink;
  tap_ = tap;
  const Frames to = latent_.New(1);
  for (int64_t c = 0; c < config.z_dim; ++c) {
    // In f32, as the reference: division by the reciprocal of the deviation.
    const auto mean = static_cast<float>(config.latents_mean[static_cast<size_t>(c)]);
    const auto std = 1.0f / static_cast<float>(config.latents_std[static_cast<size_t>(c)]);
    for (int64_t y = 0; y < latent_height_; ++y) {
      for (int64_t x = 0; x < latent_width_; ++x) {
        const float z = *static_cast<const float*>(latent.Address(c, y, x));
        to.frames[0][y * to.row_stride + x * latent_.plane().Pixel() + c] = z / std + mean;
      }
    }
  }
  TapFrames("latent_denormalised", latent_.First(1), latent_.plane());
  PixelConv(weights_.post_quant, latent_.First(1), 0, {.out = conv_in_->New(1)});
  TapFrames("post_quant_conv", {conv_in_->All().frames.last(1), conv_in_->All().row_stride},
            conv_in_->plane());
  RunMid();
  RunUpBlock(0, 1);
}

void VaeDecoder::Conv(const VaeConv& conv, VaeWindow& window, size_t level,
                      const ConvEpilogue& epilogue) {
  if (level > 0) ExchangeRims(window);
  Conv3d({.weights = &Packed(conv),
          .in = window.All(),
          .height = window.plane().height,
          .width = window.plane().width,
          .epilogue = epilogue},
         pool_, workspace_);
  window.Advance();
}

void VaeDecoder::PixelConv(const VaeConv& conv, const ConstFrames& in, size_t level,
                           const ConvEpilogue& epilogue) {
  const VaePlane plane = Plane(level, conv.In(), false);
  Conv3d({.weights = &Packed(conv),
          .in = in,
          .height = plane.height,
          .width = plane.width,
          .epilogue = epilogue},
         pool_, workspace_);
}

// x holds the input, and window1 its norm.
void VaeDecoder::RunResnet(Resnet& resnet, size_t level, const VaeFrames& x, int64_t count,
                           Target target) {
  const VaeResnet& w = resnet.weights;
  Conv(w.conv1, resnet.window1, level, {.gamma = w.norm2, .normed = resnet.window2.New(count)});
  if (w.HasShortcut()) {
    PixelConv(w.shortcut, x.First(count), level, {.out = resnet.shortcut.New(count)});
  }
  ConvEpilogue epilogue = target();
  epilogue.residual = w.HasShortcut() ? resnet.shortcut.First(count) : x.First(count);
  Conv(w.conv2, resnet.window2, level, epilogue);
}

void VaeDecoder::RunMid() {
  const VaeWeights& w = weights_;
  Conv(w.conv_in, *conv_in_, 0,
       {.out = mid_x_.New(1), .gamma = w.mid[0].norm1, .normed = mid_[0]->window1.New(1)});
  TapFrames("conv_in", mid_x_.First(1), mid_x_.plane());
  RunResnet(*mid_[0], 0, mid_x_, 1, [&] {
    return ConvEpilogue{.out = mid_x_.New(1),
                        .gamma = w.attention_norm,
                        .normed = attention_in_.New(1),
                        .silu = false};
  });
  Attend();
  VaeFrames& x = blocks_[0]->x;
  RunResnet(*mid_[1], 0, mid_x_, 1, [&] {
    return ConvEpilogue{.out = x.New(1),
                        .gamma = w.up[0].resnets[0].norm1,
                        .normed = blocks_[0]->resnets[0]->window1.New(1)};
  });
  TapFrames("mid_block", x.First(1), x.plane());
}

// One head over all pixels of the frame.
void VaeDecoder::Attend() {
  const VaeWeights& w = weights_;
  PixelConv(w.q, attention_in_.First(1), 0, {.out = q_.New(1)});
  PixelConv(w.k, attention_in_.First(1), 0, {.out = k_.New(1)});
  PixelConv(w.v, attention_in_.First(1), 0, {.out = v_.New(1)});
  attended_.New(1);
  const int64_t pixels = latent_height_ * latent_width_, width = q_.plane().Pixel();
  const Shape shape = {1, pixels, 1, width};
  AttentionArgs args;
  args.grid = {.q_tokens = pixels, .kv_tokens = pixels};
  args.head_dim = width;
  args.scale = 1.0f / std::sqrt(static_cast<float>(w.config.MidChannels()));
  args.rows = &attention_rows_;
  args.q = ConstView(q_.data(0), shape);
  args.k = ConstView(k_.data(0), shape);
  args.v = ConstView(v_.data(0), shape);
  args.out = View(attended_.data(0), shape);
  Attention(args, pool_, attention_workspace_);
  PixelConv(w.proj, attended_.First(1), 0,
            {.residual = mid_x_.First(1),
             .out = mid_x_.New(1),
             .gamma = w.mid[1].norm1,
             .normed = mid_[1]->window1.New(1)});
}

// `count` new frames lie in the block's x, and their norm in the window of its first convolution.
void VaeDecoder::RunUpBlock(size_t b, int64_t count) {
  Block& block = *blocks_[b];
  const VaeUpBlock& w = weights_.up[b];
  VaeFrames* x = &block.x;
  const size_t last = block.resnets.size() - 1;
  for (size_t r = 0; r < last; ++r) {
    Resnet& resnet = *block.resnets[r];
    VaeFrames* to = w.resnets[r].HasShortcut() ? &resnet.shortcut : x;
    RunResnet(resnet, b, *x, count, [&] {
      return ConvEpilogue{.out = to->New(count),
                          .gamma = w.resnets[r + 1].norm1,
                          .normed = block.resnets[r + 1]->window1.New(count)};
    });
    x = to;
  }
  if (!w.shape.upsample) {
    RunResnet(*block.resnets[last], b, *x, count, [&] {
      ConvEpilogue epilogue = {.gamma = weights_.norm_out, .normed = conv_out_->New(count)};
      if (tap_) epilogue.out = x->New(count);
      return epilogue;
    });
    TapFrames(fmt::format("up_block{}", b), x->First(count), x->plane());
    return Emit(count);
  }
  // The first frame of all is not repeated in time.
  const bool time = w.shape.upsample_time && !block.first_frame;
  block.first_frame = false;
  VaeWindow& window = time ? *block.time : *block.upsample;
  RunResnet(*block.resnets[last], b, *x, count,
            [&] { return ConvEpilogue{.out = window.New(count)}; });
  if (time) UpsampleTime(b, count);
  Upsample(b);
}

// Every frame becomes two.
void VaeDecoder::UpsampleTime(size_t b, int64_t count) {
  Block& block = *blocks_[b];
  const Frames frames = block.upsample->New(2 * count);
  for (size_t later : {0, 1}) {
    std::vector<float*> to;
    for (size_t f = later; f < frames.frames.size(); f += 2) to.push_back(frames.frames[f]);
    Conv3d({.weights = &Packed(weights_.up[b].time[later]),
            .in = block.time->All(),
            .height = block.time->plane().height,
            .width = block.time->plane().width,
            .epilogue = {.out = {to, frames.row_stride}}},
           pool_, workspace_);
  }
  block.time->Advance();
}

// The frames in the block's window to the next block, some at a time.
void VaeDecoder::Upsample(size_t b) {
  VaeWindow& window = *blocks_[b]->upsample;
  if (b > 0) ExchangeRims(window);
  Block& next = *blocks_[b + 1];
  // At level 0 the window has whole frames, of which this rank needs its rows.
  const int64_t first = b == 0 ? rows_.begin * window.plane().RowStride() : 0;
  const VaePlane& plane = next.x.plane();
  const int64_t group = VaeGroupFrames(next.resnets.back()->window2.plane());
  const std::span<float* const> frames = window.NewFrames();
  const auto total = static_cast<int64_t>(frames.size());
  for (int64_t begin = 0; begin < total; begin += group) {
    const int64_t count = std::min(group, total - begin);
    std::vector<const float*> from;
    for (int64_t f = begin; f < begin + count; ++f) {
      from.push_back(frames[static_cast<size_t>(f)] + first);
    }
    Conv3d({.weights = &Packed(weights_.up[b].upsample),
            .in = {from, window.plane().RowStride()},
            .height = plane.height / 2,
            .width = plane.width / 2,
            .epilogue = {.out = next.x.New(count),
                         .gamma = weights_.up[b + 1].resnets[0].norm1,
                         .normed = next.resnets[0]->window1.New(count)}},
           pool_, workspace_);
    TapFrames(fmt::format("up_block{}", b), next.x.First(count), plane);
    DropIdle(b);
    RunUpBlock(b + 1, count);
    DropIdle(b + 1);
  }
  window.Advance();
}

// Called when another level begins to compute: all that is left of this one are windows.
void VaeDecoder::DropIdle(size_t level) {
  Block& block = *blocks_[level];
  if (block.x.plane().channels < kVaeLentChannels) return;
  for (const auto& [key, pool] : pools_) {
    if (key.first == level) pool->DropFree();
  }
  block.x.Drop();
  for (const auto& resnet : block.resnets) resnet->shortcut.Drop();
  if (level == 0) {
    for (VaeFrames* frames : {&mid_x_, &attention_in_, &q_, &k_, &v_, &attended_}) frames->Drop();
  }
  packed_.Drop();
}

void VaeDecoder::Emit(int64_t count) {
  Conv(weights_.conv_out, *conv_out_, blocks_.size() - 1, {.out = parts_->New(count)});
  for (int64_t f = 0; f < count; ++f) {
    SendFrame(parts_->All().frames.subspan(static_cast<size_t>(f), 3));
  }
  parts_->Advance();
}

// Three frames' parts of a picture: this rank's rows as rgb; on rank 0 the rows of all ranks to the
// sink.
void VaeDecoder::SendFrame(std::span<const float* const> parts) {
  const VaePlane& plane = parts_->plane();
  const int64_t row = plane.width * 3, scale = weights_.config.SpatialScale();
  rgb_.resize(static_cast<size_t>(rank_ == 0 ? Height() * row : plane.height * row));
  pool_.ParallelFor(plane.height, [&](int64_t y, int) {
    float* to = rgb_.data() + y * row;
    for (int64_t x = 0; x < plane.width; ++x) {
      const int64_t at = y * plane.RowStride() + x * plane.Pixel();
      for (int64_t c = 0; c < 3; ++c) {
        *to++ = parts[0][at + c] + parts[1][at + 3 + c] + parts[2][at + 6 + c];
      }
    }
  });
  if (tap_) {
    std::vector<const float*> rows;
    for (int64_t y = 0; y < plane.height; ++y) rows.push_back(rgb_.data() + y * row);
    tap_({"conv_out", rows, plane.width, 3, 3});
  }
  if (clamp_) {
    for (float& value : rgb_) value = std::clamp(value, -1.0f, 1.0f);
  }
  const int64_t frame = frames_out_++;
  if (rank_ > 0) {
    CommRequest request = comm_->Send(std::as_bytes(std::span(rgb_)), 0, kFrameTag);
    return comm_->Wait(request);
  }
  for (int32_t rank = 1; rank < ranks_; ++rank) {
    const Range rows = EvenPart(latent_height_, rank, ranks_);
    const auto part = std::span(rgb_).subspan(static_cast<size_t>(rows.begin * scale * row),
                                              static_cast<size_t>(rows.size() * scale * row));
    CommRequest request = comm_->Receive(std::as_writable_bytes(part), rank, kFrameTag);
    comm_->Wait(request);
  }
  sink_(frame, rgb_);
}

// The first and last rows of the window's new frames go to the neighbours, theirs into our rim.
void VaeDecoder::ExchangeRims(VaeWindow& window) {
  if (ranks_ == 1) return;
  const VaePlane& plane = window.plane();
  const auto row_bytes = static_cast<size_t>(plane.width * plane.Pixel()) * sizeof(float);
  std::vector<CommRequest> requests;
  for (float* frame : window.NewFrames()) {
    const auto row = [&](int64_t y) {
      return std::span(reinterpret_cast<std::byte*>(frame + y * plane.RowStride()), row_bytes);
    };
    for (const int32_t side : {-1, 1}) {
      const int32_t other = rank_ + side;
      if (other < 0 || other >= ranks_) continue;
      requests.push_back(comm_->Receive(row(side < 0 ? -1 : plane.height), other, kRimTag));
      requests.push_back(comm_->Send(row(side < 0 ? 0 : plane.height - 1), other, kRimTag));
    }
  }
  for (CommRequest& request : requests) comm_->Wait(request);
}

void VaeDecoder::TapFrames(std::string_view name, const ConstFrames& frames,
                           const VaePlane& plane) {
  if (!tap_) return;
  for (const float* frame : frames.frames) {
    std::vector<const float*> rows;
    for (int64_t y = 0; y < plane.height; ++y) rows.push_back(frame + y * plane.RowStride());
    tap_({name, rows, plane.width, plane.channels, plane.Pixel()});
  }
}

bool DecodeVideo(const VaeWeights& weights, const ConstView& latents, ThreadPool& pool,
                 Communicator* comm, VaeFrameSink sink, VaeGoOn go_on) {
  if (latents.Rank() != 4) {
    throw InputError("[model] latents {}: must be [channels, frames, height, width]",
                     latents.shape().ToString());
  }
  VaeDecoder decoder(weights, latents.Extent(2), latents.Extent(3), pool, comm);
  for (int64_t f = 0; f < latents.Extent(1); ++f) {
    if (go_on && !go_on()) return false;
    decoder.Push(latents.Select(1, f), sink);
  }
  return true;
}

void ToBytes(std::span<const float> rgb, std::span<uint8_t> bytes) {
  EQ_CHECK(rgb.size() == bytes.size());
  for (size_t i = 0; i < rgb.size(); ++i) {
    const float unit = std::clamp(rgb[i] / 2.0f + 0.5f, 0.0f, 1.0f);
    bytes[i] = static_cast<uint8_t>(unit * 255.0f);
  }
}

}  // namespace equitile

// Latents to pictures, one latent frame after another: the decoder of a Wan autoencoder with its
// causal caches, so that memory does not depend on the length of the clip.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "equitile/base/function_ref.h"
#include "equitile/base/thread_pool.h"
#include "equitile/comm/communicator.h"
#include "equitile/kernel/attention/attention.h"
#include "equitile/model/vae/vae_frames.h"
#include "equitile/model/vae/vae_weights.h"
#include "equitile/tensor/view.h"

namespace equitile {

// A finished frame, rgb [height][width][3] in [-1, 1]. The numbers are gone after the call.
using VaeFrameSink = FunctionRef<void(int64_t frame, std::span<const float> rgb)>;

// Asked before every latent frame, on all ranks together, which must give the same answer: false
// ends the decoding. A decoder of many frames takes minutes.
using VaeGoOn = FunctionRef<bool()>;

// The output of a stage ("conv_in", "mid_block", "up_block0", ..., "conv_out"), one frame at a
// time, in order: for tests. On several ranks: this rank's rows.
struct VaeStage {
  std::string_view name;
  std::span<const float* const> rows;  // of [width] pixels, `pixel` floats apart
  int64_t width = 0, channels = 0, pixel = 0;
};
using VaeTap = FunctionRef<void(const VaeStage& stage)>;

// Frames that go through a level together, by the plane of its convolutions.
int64_t VaeGroupFrames(const VaePlane& plane);

// With so many channels, taking fresh pages from the system is little beside the convolution that
// fills them, so what one level needs only while it computes is lent to the others.
inline constexpr int64_t kVaeLentChannels = 96;

// The state of one clip. With a communicator of several ranks each computes some rows of the
// picture and neighbours exchange the rows at their borders before every convolution; what lies at
// the resolution of the latents is computed by everyone, since its attention sees whole frames. All
// ranks get the same latents and call Push together; frames arrive on rank 0. The bits do not
// depend on ranks or threads.
class VaeDecoder {
 public:
  // weights, pool and comm (null: one rank) must outlive the decoder.
  VaeDecoder(const VaeWeights& weights, int64_t latent_height, int64_t latent_width,
             ThreadPool& pool, Communicator* comm = nullptr);
  ~VaeDecoder();

  // latent: [z_dim, latent height, latent width], f32, any strides, as the sampler leaves it: mean
  // 0 and deviation 1. Gives one frame for the first one and TemporalScale() for every other.
  void Push(const ConstView& latent, VaeFrameSink sink, VaeTap tap = {});

  // Frames are not cut to [-1, 1]: for what is blended before.
  void KeepBeyondOne() { clamp_ = false; }

  int64_t Height() const { return latent_height_ * weights_.config.SpatialScale(); }
  int64_t Width() const { return latent_width_ * weights_.config.SpatialScale(); }
  int64_t Bytes() const;  // of frames and scratch, without weights

 private:
  struct Resnet;
  struct Block;
  // Where the output of a residual block goes: all of the epilogue but the residual. Asked for when
  // it is needed, so that new frames are taken as late as possible.
  using Target = FunctionRef<ConvEpilogue()>;

  VaePlane Plane(size_t level, int64_t channels, bool rim) const;
  VaeFramePool& PoolOf(size_t level, int64_t channels);
  const PackedConv& Packed(const VaeConv& conv) { return weights_.Packed(conv, packed_, pool_); }
  void Conv(const VaeConv& conv, VaeWindow& window, size_t level, const ConvEpilogue& epilogue);
  void PixelConv(const VaeConv& conv, const ConstFrames& in, size_t level,
                 const ConvEpilogue& epilogue);
  void RunResnet(Resnet& resnet, size_t level, const VaeFrames& x, int64_t count, Target target);
  void RunMid();
  void Attend();
  void RunUpBlock(size_t block, int64_t count);
  void UpsampleTime(size_t block, int64_t count);
  void Upsample(size_t block);
  void DropIdle(size_t level);
  void Emit(int64_t count);
  void ExchangeRims(VaeWindow& window);
  void SendFrame(std::span<const float* const> parts);
  void TapFrames(std::string_view name, const ConstFrames& frames, const VaePlane& plane);

  const VaeWeights& weights_;
  const int64_t latent_height_, latent_width_;
  ThreadPool& pool_;
  Communicator* comm_;
  int32_t rank_ = 0, ranks_ = 1;  // of those that have rows
  bool idle_ = false;             // more ranks than rows
  Range rows_;                    // this rank's, in latents

  std::map<std::pair<size_t, int64_t>, std::unique_ptr<VaeFramePool>> pools_;  // level, channels
  VaeFrames latent_, mid_x_, attention_in_, q_, k_, v_, attended_;
  std::unique_ptr<VaeWindow> conv_in_, conv_out_;
  std::unique_ptr<VaeWindow> parts_;  // what frames give to pictures, [frame tap][channel]
  std::vector<std::unique_ptr<Resnet>> mid_;
  std::vector<std::unique_ptr<Block>> blocks_;
  AttentionRows attention_rows_;
  Workspace attention_workspace_;
  Workspace workspace_;
  PackedConv packed_;  // weights that are not kept
  std::vector<float> rgb_;

  int64_t frames_out_ = 0;
  bool clamp_ = true;
  VaeFrameSink sink_;  // of the call of Push
  VaeTap tap_;
};

// All frames of a clip, [z_dim, frames, height, width]. False where go_on ended it.
bool DecodeVideo(const VaeWeights& weights, const ConstView& latents, ThreadPool& pool,
                 Communicator* comm, VaeFrameSink sink, VaeGoOn go_on = {});

// As diffusers makes pictures: (x / 2 + 1/2) * 255, cut off, not rounded. rgb and bytes: as many
// elements.
void ToBytes(std::span<const float> rgb, std::span<uint8_t> bytes);

}  // namespace equitile

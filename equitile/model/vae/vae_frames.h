// Frames between the layers of the decoder, and the windows in time through which causal
// convolutions see them.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/base/aligned_buffer.h"
#include "equitile/base/drop_pages.h"
#include "equitile/kernel/conv/conv3d.h"

namespace equitile {

// One frame of pixels as convolutions read it: with a rim of zeros, or without where only single
// pixels are looked at.
struct VaePlane {
  int64_t height = 0, width = 0, channels = 0;
  bool rim = true;

  int64_t Pixel() const { return PaddedChannels(channels); }
  int64_t RowStride() const { return (width + (rim ? 2 + width % 2 : 0)) * Pixel(); }
  int64_t Floats() const { return (height + (rim ? 2 + height % 2 : 0)) * RowStride(); }
  int64_t Origin() const { return rim ? RowStride() + Pixel() : 0; }  // of pixel (0, 0)
  int64_t Bytes() const { return Floats() * int64_t{sizeof(float)}; }
  friend bool operator==(const VaePlane&, const VaePlane&) = default;
};

// Frames that nobody uses at the moment, for all windows of one plane. Their rims are 0.
class VaeFramePool {
 public:
  explicit VaeFramePool(const VaePlane& plane) : plane_(plane) {}

  const VaePlane& plane() const { return plane_; }
  AlignedBuffer<float> Take();    // pixels undefined
  AlignedBuffer<float> Zeroed();  // all 0
  void GiveBack(AlignedBuffer<float> frame) { free_.push_back(std::move(frame)); }
  // The memory of free frames goes back to the system until they are taken.
  void DropFree() {
    for (AlignedBuffer<float>& frame : free_) DropPages(std::as_writable_bytes(frame.span()));
  }
  int64_t Bytes() const { return made_ * plane_.Bytes(); }

 private:
  VaePlane plane_;
  std::vector<AlignedBuffer<float>> free_;
  int64_t made_ = 0;
};

// What a convolution over time sees: the frames before (zeros at first), then new ones. Memory is
// that of the frames before; new ones come from the pool and old ones go back to it.
class VaeWindow {
 public:
  VaeWindow(VaeFramePool& pool, int64_t frame_taps);

  const VaePlane& plane() const { return pool_->plane(); }
  // Room for `count` new frames, to be written before All is read.
  Frames New(int64_t count);
  ConstFrames All() const { return {pointers_, plane().RowStride()}; }
  // New ones that were asked for since Advance.
  std::span<float* const> NewFrames() const { return new_pointers_; }
  // New frames become the frames before.
  void Advance();

 private:
  VaeFramePool* pool_;
  size_t kept_;
  std::vector<AlignedBuffer<float>> frames_;
  std::vector<const float*> pointers_;
  std::vector<float*> new_pointers_;
};

// Frames that live as long as the decoder; New gives the first `count` of them.
class VaeFrames {
 public:
  VaeFrames() = default;
  explicit VaeFrames(const VaePlane& plane) : plane_(plane) {}

  const VaePlane& plane() const { return plane_; }
  Frames New(int64_t count);
  ConstFrames First(int64_t count) const {
    return {std::span(const_pointers_).first(static_cast<size_t>(count)), plane_.RowStride()};
  }
  // The memory goes back to the system until it is written again.
  void Drop() {
    for (AlignedBuffer<float>& frame : frames_) DropPages(std::as_writable_bytes(frame.span()));
  }
  float* data(int64_t frame) { return pointers_[static_cast<size_t>(frame)]; }
  int64_t Bytes() const { return static_cast<int64_t>(frames_.size()) * plane_.Bytes(); }

 private:
  VaePlane plane_;
  std::vector<AlignedBuffer<float>> frames_;
  std::vector<float*> pointers_;
  std::vector<const float*> const_pointers_;
};

}  // namespace equitile

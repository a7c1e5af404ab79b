#include "equitile/model/vae/vae_frames.h"

#include <utility>

namespace equitile {

AlignedBuffer<float> VaeFramePool::Zeroed() {
  ++made_;
  return AlignedBuffer<float>::Zeroed(plane_.Floats());
}

AlignedBuffer<float> VaeFramePool::Take() {
  if (free_.empty()) return Zeroed();
  AlignedBuffer<float> frame = std::move(free_.back());
  free_.pop_back();
  return frame;
}

VaeWindow::VaeWindow(VaeFramePool& pool, int64_t frame_taps)
    : pool_(&pool), kept_(static_cast<size_t>(frame_taps - 1)) {
  for (size_t i = 0; i < kept_; ++i) {
    frames_.push_back(pool_->Zeroed());
    pointers_.push_back(frames_.back().data() + plane().Origin());
  }
}

Frames VaeWindow::New(int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    frames_.push_back(pool_->Take());
    new_pointers_.push_back(frames_.back().data() + plane().Origin());
    pointers_.push_back(new_pointers_.back());
  }
  return {NewFrames().last(static_cast<size_t>(count)), plane().RowStride()};
}

void VaeWindow::Advance() {
  const size_t old = frames_.size() - kept_;
  for (size_t i = 0; i < old; ++i) pool_->GiveBack(std::move(frames_[i]));
  const auto count = static_cast<ptrdiff_t>(old);
  frames_.erase(frames_.begin(), frames_.begin() + count);
  pointers_.erase(pointers_.begin(), pointers_.begin() + count);
  new_pointers_.clear();
}

Frames VaeFrames::New(int64_t count) {
  while (static_cast<int64_t>(frames_.size()) < count) {
    frames_.push_back(AlignedBuffer<float>::Zeroed(plane_.Floats()));
    pointers_.push_back(frames_.back().data() + plane_.Origin());
    const_pointers_.push_back(pointers_.back());
  }
  return {std::span(pointers_).first(static_cast<size_t>(count)), plane_.RowStride()};
}

}  // namespace equitile

#include "equitile/sparsity/key_centers.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr const char* kState = "key_centers";

// Tokens of which the mean is taken: enough of them, and a small part of the work.
constexpr int64_t kEvery = 8;

// A number in units of 2^-20. Numbers beyond 2^15 count as that much, so that sums of 2^28 fit.
constexpr double kUnits = 0x1p20;
int64_t FixedPoint(float x) {
  constexpr double kMost = 0x1p15;
  if (std::isnan(x)) return 0;
  return static_cast<int64_t>(std::clamp<double>(x, -kMost, kMost) * kUnits);
}

}  // namespace

void KeyCenters::Begin() {
  sums_.clear();
  centers_.clear();
}

std::vector<const float*> KeyCenters::Of(int32_t layer, std::span<const int64_t> heads) const {
  std::vector<const float*> centers;
  if (centers_.empty()) return centers;
  for (int64_t item = 0; item < lanes_.batch; ++item) {
    for (int64_t head : heads)
      centers.push_back(centers_.data() + At(layer, lanes_.Lane(item, head)));
  }
  return centers;
}

void KeyCenters::Add(const SelfAttentionCall& call, const Lanes& lanes, int64_t tokens,
                     std::span<const int64_t> heads, const HomeRows& home, ThreadPool& pool) {
  lanes_ = lanes;
  keys_ = CeilDiv(tokens, kEvery);
  sums_.resize(At(layers_, 0));
  const auto count = std::ssize(heads);
  pool.ParallelFor(lanes.batch * count, [&](int64_t task, int) {
    const int64_t item = task / count;
    const int64_t lane = lanes.Lane(item, heads[static_cast<size_t>(task % count)]);
    const Range at_home = home.TokensOf(item);
    uint64_t* const sum = sums_.data() + At(call.layer, lane);
    std::vector<float> key(static_cast<size_t>(head_dim_));
    for (int64_t token = RoundUp(at_home.begin, kEvery); token < at_home.end; token += kEvery) {
      call.k(lane, token, 1, key.data());
      for (size_t i = 0; i < key.size(); ++i) sum[i] += static_cast<uint64_t>(FixedPoint(key[i]));
    }
  });
}

void KeyCenters::EndStep(Communicator& comm) {
  if (sums_.empty()) return;
  comm.AllReduce(std::span(sums_), Reduce::kSum);
  centers_.resize(sums_.size());
  const double unit = 1.0 / (kUnits * static_cast<double>(keys_));
  for (size_t i = 0; i < sums_.size(); ++i)
    centers_[i] = static_cast<float>(static_cast<double>(static_cast<int64_t>(sums_[i])) * unit);
  std::fill(sums_.begin(), sums_.end(), 0);
}

SourceState KeyCenters::State() const {
  if (centers_.empty()) return {};
  const int64_t sizes[] = {lanes_.batch, lanes_.heads};
  std::vector<std::byte> bytes(sizeof(sizes) + centers_.size() * sizeof(float));
  std::memcpy(bytes.data(), sizes, sizeof(sizes));
  std::memcpy(bytes.data() + sizeof(sizes), centers_.data(), centers_.size() * sizeof(float));
  return {{kState, std::move(bytes)}};
}

void KeyCenters::Restore(const SourceState& state) {
  Begin();
  const auto found = state.find(kState);
  if (found == state.end()) return;  // before the first step
  const std::vector<std::byte>& bytes = found->second;
  int64_t sizes[2] = {};
  if (bytes.size() > sizeof(sizes)) std::memcpy(sizes, bytes.data(), sizeof(sizes));
  constexpr int64_t kMost = 1 << 20;
  const bool fits = sizes[0] > 0 && sizes[0] < kMost && sizes[1] > 0 && sizes[1] < kMost;
  lanes_ = {.batch = sizes[0], .heads = sizes[1]};
  if (!fits || bytes.size() != sizeof(sizes) + At(layers_, 0) * sizeof(float))
    throw InputError("[sparsity] the checkpoint's centers of keys are damaged");
  centers_.resize(At(layers_, 0));
  std::memcpy(centers_.data(), bytes.data() + sizeof(sizes), centers_.size() * sizeof(float));
}

}  // namespace equitile

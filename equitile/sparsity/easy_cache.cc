#include "equitile/sparsity/easy_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "equitile/base/error.h"

namespace equitile {
namespace {

std::span<const float> Floats(const Tensor& tensor) {
  return {tensor.DataAs<float>(), static_cast<size_t>(tensor.Elements())};
}

// One thread, ascending: the same bits in every run.
double MeanDistance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
  return sum / static_cast<double>(a.size());
}

template <typename T>
std::vector<std::byte> Bytes(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <typename T>
std::vector<T> Values(const SourceState& state, const std::string& name) {
  const auto found = state.find(name);
  if (found == state.end() || found->second.size() % sizeof(T) != 0)
    throw InputError("[sparsity] the checkpoint has no '{}' of a step cache", name);
  std::vector<T> values(found->second.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), found->second.data(), found->second.size());
  return values;
}

}  // namespace

EasyCache::EasyCache(EasyCacheOptions options) : options_(options) {
  options_.first_steps = std::max(options_.first_steps, EasyCacheOptions::kLeastFirstSteps);
}

bool EasyCache::Skips(int64_t step, int64_t steps, std::span<const float> latents) {
  if (step < options_.first_steps || step == steps - 1 || rate_ < 0) return false;
  accumulated_ += rate_ * MeanDistance(latents, last_latents_) / output_size_;
  last_latents_.assign(latents.begin(), latents.end());
  return accumulated_ < options_.bound;  // false for NaN
}

void EasyCache::FillIn(std::span<const float> latents, std::span<Tensor> passes) {
  for (size_t pass = 0; pass < passes.size(); ++pass) {
    float* velocity = passes[pass].DataAs<float>();
    for (size_t i = 0; i < latents.size(); ++i) velocity[i] = latents[i] + difference_[pass][i];
  }
}

void EasyCache::Computed(int64_t step, std::span<const float> latents,
                         std::span<const Tensor> passes) {
  double change = 0, size = 0;
  std::vector<float> before(latents.size());
  for (size_t pass = 0; pass < passes.size(); ++pass) {
    const std::span<const float> velocity = Floats(passes[pass]);
    if (!difference_.empty()) {
      for (size_t i = 0; i < before.size(); ++i)
        before[i] = computed_latents_[i] + difference_[pass][i];
      change += MeanDistance(velocity, before);
    }
    std::fill(before.begin(), before.end(), 0.0f);
    size += MeanDistance(velocity, before);
  }
  const double passes_count = static_cast<double>(passes.size());
  if (step > 0 && !difference_.empty()) {
    const double moved = MeanDistance(latents, computed_latents_);
    rate_ = moved > 0 ? change / passes_count / moved : -1;
  }
  output_size_ = size / passes_count;
  difference_.resize(passes.size());
  for (size_t pass = 0; pass < passes.size(); ++pass) {
    const std::span<const float> velocity = Floats(passes[pass]);
    difference_[pass].resize(latents.size());
    for (size_t i = 0; i < latents.size(); ++i) difference_[pass][i] = velocity[i] - latents[i];
  }
  computed_latents_.assign(latents.begin(), latents.end());
  last_latents_ = computed_latents_;
  accumulated_ = 0;
}

SourceState EasyCache::State() const {
  SourceState state;
  state["cache.numbers"] = Bytes(std::vector<double>{rate_, output_size_, accumulated_});
  state["cache.last"] = Bytes(last_latents_);
  state["cache.computed"] = Bytes(computed_latents_);
  for (size_t pass = 0; pass < difference_.size(); ++pass)
    state[fmt::format("cache.difference.{}", pass)] = Bytes(difference_[pass]);
  return state;
}

void EasyCache::Restore(const SourceState& state) {
  const std::vector<double> numbers = Values<double>(state, "cache.numbers");
  if (numbers.size() != 3) throw InputError("[sparsity] the checkpoint's step cache is damaged");
  rate_ = numbers[0];
  output_size_ = numbers[1];
  accumulated_ = numbers[2];
  last_latents_ = Values<float>(state, "cache.last");
  computed_latents_ = Values<float>(state, "cache.computed");
  difference_.clear();
  for (size_t pass = 0; state.contains(fmt::format("cache.difference.{}", pass)); ++pass)
    difference_.push_back(Values<float>(state, fmt::format("cache.difference.{}", pass)));
  for (const std::vector<float>& difference : difference_) {
    if (difference.size() != computed_latents_.size() ||
        last_latents_.size() != computed_latents_.size()) {
      throw InputError("[sparsity] the checkpoint's step cache does not fit together");
    }
  }
}

}  // namespace equitile

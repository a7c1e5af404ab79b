// The UMT5 text encoder: prompts as rows of numbers for the transformer's cross-attention.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "equitile/base/function_ref.h"
#include "equitile/base/thread_pool.h"
#include "equitile/io/arrays/safetensors.h"
#include "equitile/kernel/compute.h"
#include "equitile/model/text/umt5_config.h"
#include "equitile/tensor/tensor.h"

namespace equitile {

// Owns no weights beyond the mapped file: a run needs each matrix once for all prompts, so they are
// packed one after the other into the same memory (the largest matrix of the model, instead of 11
// GB for the encoder of Wan).
class Umt5Encoder {
 public:
  // text_encoder/ of a checkpoint. Throws InputError, naming tensor, found and expected, for
  // missing tensors, wrong shapes or types.
  explicit Umt5Encoder(const std::filesystem::path& folder);

  const Umt5Config& config() const { return config_; }
  const TensorFiles& files() const { return files_; }

  // Ids of each prompt without padding -> rows [ids, d_model], f32. (Padding is masked, so rows
  // beyond are not computed; for the transformer they are zero.) A prompt's rows depend on its own
  // ids and the SIMD target only. Throws InputError for ids outside the vocabulary and for weights
  // that are not finite. report(done, layers) after each layer.
  // Linear layers compute in `compute`.
  std::vector<Tensor> Encode(std::span<const std::vector<int32_t>> prompts, ThreadPool& pool,
                             FunctionRef<void(int64_t done, int64_t layers)> report = {},
                             Compute compute = Compute::kF32) const;

 private:
  class Run;

  Umt5Config config_;
  TensorFiles files_;
  const StoredTensor* embedding_ = nullptr;  // [vocab_size, d_model]
};

}  // namespace equitile

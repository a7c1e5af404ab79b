// The weights of a Wan transformer as the kernels read them, in one relocatable range of bytes:
// processes of a node can map the same copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/function_ref.h"
#include "equitile/base/thread_pool.h"
#include "equitile/io/safetensors.h"
#include "equitile/kernel/packed_linear.h"
#include "equitile/model/wan/wan_config.h"

namespace equitile {

struct WanLinear {
  PackedLinear weights;
  std::span<const float> bias;  // [out]
};

struct WanBlockWeights {
  std::span<const float> modulation;  // [6][D]
  WanLinear qkv;                      // D -> 3D: to_q, to_k, to_v
  std::span<const float> norm_q, norm_k;
  WanLinear self_out;
  std::span<const float> norm2_weight, norm2_bias;  // empty without cross_attn_norm
  WanLinear cross_q, cross_kv, cross_out;           // kv: D -> 2D: to_k, to_v
  std::span<const float> cross_norm_q, cross_norm_k;
  WanLinear ffn_in, ffn_out;
};

// Views of packed bytes that somebody else owns. Matrices are stored as `type`, those of the time
// embedder and everything else as f32, as checkpoints that diffusers saves in bf16 are: packed as
// bf16 they lose nothing. Integers are for the matrices of blocks; beside them all else is f32.
class WanWeights {
 public:
  WanWeights() = default;
  // The bytes must have been packed with the same config and type. Throws InputError where they
  // were not.
  WanWeights(const WanConfig& config, WeightType type, std::span<const std::byte> bytes);

  static int64_t Bytes(const WanConfig& config, WeightType type);

  // Throws InputError, naming tensor, found and expected, for missing tensors and wrong shapes or
  // types. To be asked before Bytes() are taken: a config may claim any size.
  static void Check(const TensorFiles& files, const WanConfig& config);

  // Tensor by tensor, so that no second copy of the model ever exists; `to` is 64-byte aligned and
  // Bytes() long. Checks first, and throws InputError for values that are not finite. report(done,
  // total): bytes packed so far.
  static void Pack(const TensorFiles& files, const WanConfig& config, WeightType type,
                   std::span<std::byte> to, ThreadPool& pool,
                   FunctionRef<void(int64_t done, int64_t total)> report = {});

  // Random numbers of the size that keeps activations of order 1: for benches.
  static void PackRandom(const WanConfig& config, WeightType type, uint64_t seed,
                         std::span<std::byte> to, ThreadPool& pool);

  WanLinear patch;                      // in_channels * patch -> D
  WanLinear time_1, time_2, time_proj;  // freq_dim -> D -> D; D -> 6D
  WanLinear text_1, text_2;             // text_dim -> D -> D
  std::vector<WanBlockWeights> blocks;
  std::span<const float> modulation;  // [2][D]
  WanLinear proj_out;                 // D -> out_channels * patch
};

}  // namespace equitile

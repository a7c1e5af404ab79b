// The weights of a Wan transformer as the kernels read them, in one relocatable range of bytes:
// processes of a node can map the same copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "equitile/base/function_ref.h"
#include "equitile/base/thread_pool.h"
#include "equitile/io/arrays/safetensors.h"
#include "equitile/kernel/linear/packed_linear.h"
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

// How matrices are stored.
struct WanWeightTypes {
  WanWeightTypes(WeightType all = WeightType::kF32, std::vector<std::string> int16_too = {})
      : type(all), int16(std::move(int16_too)) {}

  WeightType type;
  // Matrices of blocks that are int16 where the others are int8, a stacked one by the name of its
  // first: "blocks.2.ffn.net.2".
  std::vector<std::string> int16;
};

// Views of packed bytes that somebody else owns. Matrices are stored as `types` say, those of the
// time embedder and everything else as f32, as checkpoints that diffusers saves in bf16 are: packed
// as bf16 they lose nothing. Integers are for the matrices of blocks; beside them all else is f32.
class WanWeights {
 public:
  WanWeights() = default;
  // The bytes must have been packed with the same config and type. Throws InputError where they
  // were not.
  WanWeights(const WanConfig& config, const WanWeightTypes& types,
             std::span<const std::byte> bytes);

  static int64_t Bytes(const WanConfig& config, const WanWeightTypes& types);

  // Throws InputError, naming tensor, found and expected, for missing tensors and wrong shapes or
  // types. To be asked before Bytes() are taken: a config may claim any size.
  static void Check(const TensorFiles& files, const WanConfig& config);

  // Matrices that lose by int8, as WanWeightTypes names them: those whose RoundingError is above
  // 2e-2. Normal numbers are at 8e-3 and both operands of a layer together at 1.1e-2 to 1.3e-2:
  // what is above makes a layer half as good at the least. From the weights alone, so known before
  // a run and the same wherever it is asked. Checks first.
  static std::vector<std::string> StayInt16(const TensorFiles& files, const WanConfig& config);
  static int64_t BlockMatrices(const WanConfig& config);  // that can be integers

  // Tensor by tensor, so that no second copy of the model ever exists; `to` is 64-byte aligned and
  // Bytes() long. Checks first, and throws InputError for values that are not finite. report(done,
  // total): bytes packed so far.
  static void Pack(const TensorFiles& files, const WanConfig& config, const WanWeightTypes& types,
                   std::span<std::byte> to, ThreadPool& pool,
                   FunctionRef<void(int64_t done, int64_t total)> report = {});

  // Random numbers of the size that keeps activations of order 1: for benches.
  static void PackRandom(const WanConfig& config, const WanWeightTypes& types, uint64_t seed,
                         std::span<std::byte> to, ThreadPool& pool);

  WanLinear patch;                      // in_channels * patch -> D
  WanLinear time_1, time_2, time_proj;  // freq_dim -> D -> D; D -> 6D
  WanLinear text_1, text_2;             // text_dim -> D -> D
  std::vector<WanBlockWeights> blocks;
  std::span<const float> modulation;  // [2][D]
  WanLinear proj_out;                 // D -> out_channels * patch
};

}  // namespace equitile

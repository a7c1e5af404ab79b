// The parts of a golden checkpoint, loaded whole, and a pass of its transformer with everything at
// home.
#pragma once

#include <span>
#include <vector>

#include "equitile/base/aligned_buffer.h"
#include "equitile/io/checkpoint_folder.h"
#include "equitile/model/local_attention.h"
#include "equitile/model/wan_transformer.h"
#include "equitile/tensor/tensor.h"

namespace equitile {

struct GoldenTransformer {
  GoldenTransformer(const CheckpointFolder& checkpoint, ThreadPool& pool)
      : config(ReadWanConfig(checkpoint.Config("transformer"))),
        bytes(WanWeights::Bytes(config, DType::kF32)) {
    WanWeights::Pack(TensorFiles::OpenFolder(checkpoint.Part("transformer")), config, DType::kF32,
                     bytes.span(), pool);
    weights = WanWeights(config, DType::kF32, bytes.span());
  }

  WanConfig config;
  AlignedBuffer<std::byte> bytes;
  WanWeights weights;
};

// Velocities [channels, frames, height, width] of one item.
Tensor RunGoldenPass(WanTransformer& transformer, const ConstView& latent, const WanText& text,
                     float timestep, ThreadPool& pool, WanTap tap = {});

}  // namespace equitile

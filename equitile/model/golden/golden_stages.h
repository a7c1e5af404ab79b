// What a transformer or a decoder computes on its way, in the layout of golden files
// (tests/golden/README.md): one reading of those files for `verify` and for tests.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/comm/communicator.h"
#include "equitile/io/arrays/safetensors.h"
#include "equitile/model/vae/vae_decoder.h"
#include "equitile/model/wan/wan_transformer.h"

namespace equitile {

// The tokens that a transformer file keeps: its 'rows', or all. Throws InputError for rows beyond.
std::vector<int64_t> GoldenRows(const TensorFiles& file, int64_t tokens);
// The cases of a transformer file ("cond", "zero"), in the file's order.
std::vector<std::string> GoldenCases(const TensorFiles& file);

// Collective: rows [home tokens][width] of one batch item, all of them on rank 0.
std::vector<float> GatherHomeRows(Communicator& comm, std::vector<float> rows, int64_t tokens,
                                  int64_t width);

// The stages of one pass over one batch item.
class WanStages {
 public:
  explicit WanStages(const WanConfig& config) : config_(config) {}

  void operator()(std::string_view name, const float* data, int64_t rows, int64_t width);  // a tap
  void Put(const std::string& name, std::span<const float> values);
  // rope_cos and rope_sin of `rows`.
  void PutRotations(const TokenGrid& grid, const std::vector<int64_t>& rows);
  // Collective, after a pass whose tokens are at home on the ranks of comm: rank 0 then has all
  // rows of the stages `names` that are per token.
  void Gather(Communicator& comm, std::span<const std::string> names, int64_t tokens);

  // As a file holds it: of stages per token only `rows`, and q, k, v by head. Empty where the model
  // has no such stage.
  std::vector<float> InFileLayout(const std::string& name, const std::vector<int64_t>& rows) const;

 private:
  const WanConfig& config_;
  std::map<std::string, std::vector<float>> values_;  // per token: [tokens][D]
};

// The frames and stages of one clip.
class VaeStages {
 public:
  // Through `decoder`, which may be one of several ranks: frames are then on rank 0, and stages
  // must not be asked for.
  VaeStages(VaeDecoder& decoder, const ConstView& latents, bool with_stages);

  const std::vector<float>& frames() const { return frames_; }  // [frames][height][width][3]
  // A tensor of the clip ("frames", "latent_denormalised", "chunk1.mid_block") as a file holds it,
  // [channels, frames, height, width]; empty where the decoder has no such stage.
  std::vector<float> InFileLayout(const std::string& name) const;

 private:
  struct Stage {
    int64_t channels = 0;
    std::vector<float> pixels;  // [frames][height][width][channels]
  };
  std::vector<float> frames_;
  std::vector<std::map<std::string, Stage>> chunks_;  // per latent frame
};

// [pixels][channels] as [channels][pixels].
std::vector<float> ChannelsFirst(std::span<const float> pixels, int64_t channels);

}  // namespace equitile

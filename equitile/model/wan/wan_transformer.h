// The Wan transformer over the tokens that are at home on this rank. Self-attention is a call that
// somebody else answers; everything else happens here, token by token, so that its bits depend
// neither on threads nor on where a token lives.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "equitile/base/aligned_buffer.h"
#include "equitile/base/function_ref.h"
#include "equitile/base/growing_buffer.h"
#include "equitile/base/thread_pool.h"
#include "equitile/kernel/attention/attention.h"
#include "equitile/kernel/linear/linear.h"
#include "equitile/kernel/rows/rope.h"
#include "equitile/model/wan/model_span.h"
#include "equitile/model/wan/self_attention.h"
#include "equitile/model/wan/wan_weights.h"

namespace equitile {

// Sees intermediate values, for tests and `verify`: name as in the golden files ("block0.self.q"),
// rows [rows][width] of the home tokens, heads side by side.
using WanTap =
    FunctionRef<void(std::string_view name, const float* data, int64_t rows, int64_t width)>;

// Keys and values of one prompt for the cross-attention of every layer. They depend on neither
// timestep nor latents, so they are made once per prompt. The rows beyond the prompt are zeros, and
// so are all alike: they become one key, with the logarithm of their number added to its logit.
struct WanText {
  int64_t keys = 0;         // prompt rows, and one more where zeros follow
  AlignedBuffer<float> kv;  // [layers][keys][2 D]: k, normed, beside v
  std::vector<float> bias;  // [keys]
};

// Where the time of passes went, in seconds; rest is norms, rotations and everything else that is
// neither attention nor a linear layer, also where it is fused with one of them (then by the time
// that the threads spent in it, divided by their number).
struct WanTimes {
  double attention = 0.0, linear = 0.0, rest = 0.0;
  int64_t linear_products = 0;  // multiply-adds of linear layers
};

// One pass over one or more batch items, say the conditional and the unconditional one.
struct WanPass {
  int32_t step = 0;  // counted from 0; with sigma for whoever answers self-attention
  double sigma = 0;
  float timestep = 0.0f;
  std::span<const ConstView> latents;     // [items] of [channels, frames, height, width], f32
  std::span<const WanText* const> texts;  // [items]
  std::span<const Range> home;            // [items]: this rank's tokens; all of them on one rank
  TokenOrder order = {};                  // along which tokens are numbered, and so are homes
  SelfAttention attention;
  SkippedHeadsOf skipped_heads = {};  // empty: none are
  WanTap tap;
  WanTimes* times = nullptr;   // added to, where given
  FunctionRef<double()> now;   // the rank's clock, for times; empty: base/timer.h
  ModelSpanSink on_span = {};  // empty: nobody asks
};

// Owns its activations: they grow to the largest pass and are used again by the next. One pass at a
// time.
class WanTransformer {
 public:
  // weights and pool must outlive it.
  // cross_attention: in what the products of attention to the text are computed.
  WanTransformer(const WanConfig& config, const WanWeights& weights, ThreadPool& pool,
                 Compute cross_attention = Compute::kF32);

  const WanConfig& config() const { return config_; }
  const WanWeights& weights() const { return weights_; }

  // rows: the prompt's embeddings [rows, text_dim], f32, without the zeros that follow up to
  // text_tokens. Throws InputError where they do not fit.
  WanText Text(const ConstView& rows, int64_t text_tokens, WanTap tap = {});

  // The velocity of the home tokens, [home tokens of all items][patch * out_channels]: rows for
  // ScatterPatches, in the pass's order. Throws InputError where sizes do not fit.
  void Forward(const WanPass& pass, float* out);

 private:
  class Pass;

  WanConfig config_;
  const WanWeights& weights_;
  ThreadPool& pool_;
  Compute cross_attention_;
  Workspace workspace_;
  Workspace attention_workspace_;
  TokenGrid grid_;               // of the last pass;
  RopeTable rope_;               // of this grid,
  std::vector<int32_t> places_;  // and so are these (PlaceOfToken)
  GrowingBuffer hidden_;         // [tokens][D]
  GrowingBuffer qkv_;            // [tokens][3 D]
  GrowingBuffer attended_;       // [tokens][D], less where heads are skipped
  GrowingBuffer ffn_;            // [tokens of a tile][ffn]
};

}  // namespace equitile

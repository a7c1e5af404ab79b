#include "equitile/model/wan/wan_transformer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>

#include "equitile/base/error.h"
#include "equitile/base/timer.h"
#include "equitile/kernel/linear/norm.h"
#include "equitile/kernel/rows/sinusoid.h"
#include "equitile/pattern/token_place.h"

namespace equitile {
namespace {

// Bytes of the hidden layer of the feed-forward network that exist at a time. Its weights come from
// memory once per tile of tokens; at the largest model's width this is still a thousand tokens, for
// which they are read in a small part of the time that multiplying takes.
constexpr int64_t kFfnBytes = int64_t{64} << 20;
constexpr int64_t kFfnStep = 96;  // a tile of the linear kernel

constexpr int64_t kStatisticsTokens = 64;  // rows of q and k that one task takes

// sum[i] = a[i] + b[i], and 1 more where the result scales.
void AddModulation(std::span<const float> a, std::span<const float> b, int64_t width, int64_t row,
                   bool scales, float* sum) {
  for (int64_t i = 0; i < width; ++i) {
    const float m =
        a[static_cast<size_t>(row * width + i)] + b[static_cast<size_t>(row * width + i)];
    sum[i] = scales ? 1.0f + m : m;
  }
}

int64_t TotalOf(std::span<const Range> ranges, int64_t otherwise) {
  if (ranges.empty()) return otherwise;
  int64_t total = 0;
  for (const Range& range : ranges) total += range.size();
  return total;
}

}  // namespace

// One pass at work.
class WanTransformer::Pass {
 public:
  Pass(WanTransformer& model, const WanPass& pass, float* out)
      : model_(model),
        config_(model.config_),
        pass_(pass),
        out_(out),
        d_(model.config_.Width()),
        items_(static_cast<int64_t>(pass.latents.size())) {
    Check();
    for (const Range& home : pass.home) {
      first_row_.push_back(tokens_);
      tokens_ += home.size();
    }
    // A rank without tokens has buffers as well: offsets into none would be undefined.
    const int64_t rows = std::max<int64_t>(tokens_, 1);
    hidden_ = model.hidden_.Get<float>(rows * d_);
    qkv_ = model.qkv_.Get<float>(rows * 3 * d_);
    attended_ = model.attended_.Get<float>(rows * d_);
    inverse_q_.resize(static_cast<size_t>(tokens_));
    modulation_ = AlignedBuffer<float>(6 * d_);
  }

  void Run() {
    const double begin = Now();
    Conditions();
    Embed();
    for (size_t layer = 0; layer < model_.weights_.blocks.size(); ++layer) Block(layer);
    Head();
    if (pass_.times != nullptr) Account(Now() - begin);
  }

 private:
  // --- Times ---

  double Now() const { return pass_.now ? pass_.now() : NowSeconds(); }

  // A producer whose seconds, summed over threads, are counted where times are asked for. By this
  // machine's clock: the rank's is for its calling thread.
  template <typename Produce>
  auto Timed(Produce produce) {
    return [this, produce](int64_t lane, int64_t first, int64_t count, float* rows) {
      if (pass_.times == nullptr) return produce(lane, first, count, rows);
      const double start = NowSeconds();
      produce(lane, first, count, rows);
      fused_nanoseconds_ += static_cast<int64_t>((NowSeconds() - start) * 1e9);
    };
  }

  auto Normed(const LayerNorm& norm) {
    return Timed([norm](int64_t, int64_t first, int64_t count, float* rows) {
      LayerNormRows(norm, first, count, rows);
    });
  }

  template <typename Work>
  void CountSeconds(double& seconds, double& fused, const Work& work) {
    if (pass_.times == nullptr) return work();
    fused_nanoseconds_ = 0;
    const double begin = Now();
    work();
    seconds += Now() - begin;
    fused += static_cast<double>(fused_nanoseconds_) * 1e-9 / model_.pool_.Threads();
  }

  template <typename Work>
  void Spanned(ModelSpan::Kind kind, const Work& work) {
    if (!pass_.on_span) return work();
    const double begin = Now();
    work();
    pass_.on_span(
        {.kind = kind, .step = pass_.step, .layer = layer_, .begin = begin, .end = Now()});
  }

  void Account(double total) const {
    const double attention = attention_seconds_ - attention_fused_;
    const double linear = linear_seconds_ - linear_fused_;
    pass_.times->attention += attention;
    pass_.times->linear += linear;
    pass_.times->rest += total - attention - linear;
  }

  // --- Stages ---

  void Check() {
    const auto items = static_cast<size_t>(items_);
    EQ_CHECK(items > 0 && pass_.texts.size() == items && pass_.home.size() == items,
             "{} latents, {} texts, {} homes", items, pass_.texts.size(), pass_.home.size());
    TokenGrid grid = PatchGrid(pass_.latents[0], config_.patch);
    grid.home = pass_.order;
    for (const ConstView& latent : pass_.latents) {
      const ConstView& first = pass_.latents[0];
      if (latent.Rank() != 4 || latent.Extent(0) != config_.in_channels ||
          latent.shape() != first.shape() || latent.dtype() != DType::kF32) {
        throw InputError("[model] latents {} {}: expected f32 with {} channels, all of one shape",
                         DTypeName(latent.dtype()), latent.shape().ToString(), config_.in_channels);
      }
    }
    for (int64_t extent : {grid.frames, grid.height, grid.width}) {
      if (extent > config_.rope_max_seq_len) {
        throw InputError("[model] {} x {} x {} patches: the model knows positions up to {} only",
                         grid.frames, grid.height, grid.width, config_.rope_max_seq_len);
      }
    }
    for (const Range& home : pass_.home) {
      EQ_CHECK(0 <= home.begin && home.begin <= home.end && home.end <= grid.VideoTokens(),
               "home {}..{} of {} tokens", home.begin, home.end, grid.VideoTokens());
    }
    if (!(grid == model_.grid_)) {
      model_.grid_ = grid;
      model_.rope_ = RopeTable(grid, config_.head_dim);
      model_.places_ = PlaceOfToken(grid);
    }
  }

  // Time embedding, and what every layer's modulation adds to it.
  void Conditions() {
    std::vector<float> u(static_cast<size_t>(config_.freq_dim));
    TimestepSinusoid(pass_.timestep, u);
    temb_.resize(static_cast<size_t>(d_));
    tproj_.resize(static_cast<size_t>(6 * d_));
    std::vector<float> middle(temb_.size());
    const WanWeights& w = model_.weights_;
    OneRow(w.time_1, u, Activation::kSilu, middle);
    OneRow(w.time_2, middle, Activation::kNone, temb_);
    middle = temb_;
    Activate(Activation::kSilu, d_, middle.data());
    OneRow(w.time_proj, middle, Activation::kNone, tproj_);
    if (pass_.tap) {
      pass_.tap("sinusoid", u.data(), 1, config_.freq_dim);
      pass_.tap("temb", temb_.data(), 1, d_);
      pass_.tap("timestep_proj", tproj_.data(), 6, d_);
    }
  }

  void OneRow(const WanLinear& layer, std::span<const float> x, Activation activation,
              std::span<float> y) {
    LinearArgs args;
    args.weights = layer.weights;
    args.x = ConstView(x.data(), {1, args.weights.In()});
    args.epilogue.bias = layer.bias;
    args.epilogue.activation = activation;
    args.y = View(y.data(), {1, args.weights.Out()});
    RunLinear(args);
  }

  void Embed() {
    for (int64_t item = 0; item < items_; ++item) {
      const Range home = pass_.home[static_cast<size_t>(item)];
      LinearArgs args;
      args.weights = model_.weights_.patch.weights;
      auto gather = Timed([&](int64_t, int64_t first, int64_t count, float* rows) {
        GatherPatches(pass_.latents[static_cast<size_t>(item)], config_.patch, home.begin + first,
                      count, rows, model_.places_);
      });
      args.x = RowProducer(gather);
      args.epilogue.bias = model_.weights_.patch.bias;
      args.y = View(hidden_ + FirstRow(item) * d_, {home.size(), d_});
      RunLinear(args);
    }
    Tap("patch_embedding", hidden_, d_);
  }

  void Block(size_t layer) {
    const WanBlockWeights& block = model_.weights_.blocks[layer];
    layer_ = static_cast<int32_t>(layer);
    for (int64_t row = 0; row < 6; ++row) {
      AddModulation(block.modulation, tproj_, d_, row, row == 1 || row == 4,
                    modulation_.data() + row * d_);
    }
    SelfPart(block);
    CrossPart(block);
    FeedForward(block);
    Tap("block.output", hidden_, d_);
  }

  const float* Modulation(int64_t row) const { return modulation_.data() + row * d_; }

  LayerNorm Norm(const float* scale, const float* shift) const {
    return {.x = hidden_, .width = d_, .eps = config_.eps, .scale = scale, .shift = shift};
  }

  // Skipped heads have no values, and no inputs of the output's layer; queries and keys they have,
  // since the norm runs over all heads.
  void SelfPart(const WanBlockWeights& block) {
    std::vector<int64_t> skipped;
    if (pass_.skipped_heads)
      skipped = pass_.skipped_heads({.step = pass_.step, .layer = layer_, .sigma = pass_.sigma});
    const std::vector<Range> attending = ChannelsWithout(skipped);
    std::vector<Range> columns;
    if (!skipped.empty()) columns.push_back({0, 2 * d_});
    for (const Range& channels : attending) {
      if (!channels.empty()) columns.push_back({2 * d_ + channels.begin, 2 * d_ + channels.end});
    }

    const LayerNorm norm = Norm(Modulation(1), Modulation(0));
    TapNorm("self.input", norm);
    auto normed = Normed(norm);
    Project(block.qkv, RowProducer(normed), qkv_, columns);
    NormAndRotateAll(qkv_, block.norm_q);
    NormAndRotateAll(qkv_ + d_, block.norm_k);

    auto rows_of = [&](const float* x) {
      return [this, x](int64_t lane, int64_t token, int64_t count, float* rows) {
        const float* from = x + RowOf(lane / config_.heads, token) * 3 * d_ + ChannelOf(lane);
        for (int64_t t = 0; t < count; ++t)
          std::copy_n(from + t * 3 * d_, config_.head_dim, rows + t * config_.head_dim);
      };
    };
    auto q = rows_of(qkv_), k = rows_of(qkv_ + d_), v = rows_of(qkv_ + 2 * d_);
    TapHeads("self.q", q);
    TapHeads("self.k", k);
    TapHeads("self.v", v);
    const SelfAttentionCall call = {.step = pass_.step,
                                    .layer = layer_,
                                    .sigma = pass_.sigma,
                                    .scale = Scale(),
                                    .q = RowProducer(q),
                                    .k = RowProducer(k),
                                    .v = RowProducer(v),
                                    .out = attended_,
                                    .skipped = skipped};
    CountSeconds(attention_seconds_, attention_fused_, [&] { pass_.attention(call); });
    Tap("self.attended", attended_, TotalOf(attending, d_));
    TapLinear("self.output", block.self_out, attending);
    AddToHidden(block.self_out, attended_, {0, tokens_}, Modulation(2), attending);
  }

  // Channels of all other heads, in as few ranges as can be; one empty range where there are none.
  // Nothing where no head is skipped.
  std::vector<Range> ChannelsWithout(std::span<const int64_t> skipped) const {
    if (skipped.empty()) return {};
    const int64_t dim = config_.head_dim;
    std::vector<Range> channels;
    int64_t begin = 0;
    for (const int64_t head : skipped) {
      if (begin < head * dim) channels.push_back({begin, head * dim});
      begin = (head + 1) * dim;
    }
    if (begin < d_) channels.push_back({begin, d_});
    if (channels.empty()) channels.push_back({0, 0});
    return channels;
  }

  void CrossPart(const WanBlockWeights& block) {
    if (config_.cross_attn_norm) {
      const LayerNorm norm = Norm(block.norm2_weight.data(), block.norm2_bias.data());
      TapNorm("cross.input", norm);
      auto normed = Normed(norm);
      Project(block.cross_q, RowProducer(normed), qkv_);
    } else {
      Tap("cross.input", hidden_, d_);
      Project(block.cross_q, ConstView(hidden_, {tokens_, d_}), qkv_);
    }
    Statistics(qkv_, d_, inverse_q_);
    Spanned(ModelSpan::Kind::kTextAttention, [&] {
      CountSeconds(attention_seconds_, attention_fused_, [&] {
        for (int64_t item = 0; item < items_; ++item) CrossAttention(block, item);
      });
    });
    TapLinear("cross.output", block.cross_out, {});
    AddToHidden(block.cross_out, attended_, {0, tokens_}, nullptr);
  }

  void CrossAttention(const WanBlockWeights& block, int64_t item) {
    const int64_t tokens = pass_.home[static_cast<size_t>(item)].size();
    if (tokens == 0) return;
    const WanText& text = *pass_.texts[static_cast<size_t>(item)];
    const float* kv = text.kv.data() + layer_ * text.keys * 2 * d_;
    const Shape keys = {1, text.keys, config_.heads, config_.head_dim};
    const Strides strides = {text.keys * 2 * d_, 2 * d_, config_.head_dim, 1};
    auto q = Timed([&](int64_t lane, int64_t token, int64_t count, float* rows) {
      const int64_t row = FirstRow(item) + token, channel = ChannelOf(lane);
      const NormedHead head = {.x = qkv_ + row * d_ + channel,
                               .stride = d_,
                               .inverse_rms = inverse_q_.data() + row,
                               .weight = block.cross_norm_q.data() + channel};
      NormHeadRows(head, config_.head_dim, count, rows);
    });
    AttentionArgs args;
    args.lanes = {.batch = 1, .heads = config_.heads};
    args.grid = {.q_tokens = tokens, .kv_tokens = text.keys};
    args.head_dim = config_.head_dim;
    args.scale = Scale();
    const AttentionRows rows = AttentionRows::Dense(args.lanes, args.grid);
    args.rows = &rows;
    args.q = RowProducer(q);
    args.k = ConstView(kv, DType::kF32, keys, strides);
    args.v = ConstView(kv + d_, DType::kF32, keys, strides);
    args.bias.data = text.bias.data();
    args.compute = model_.cross_attention_;
    args.out = View(attended_ + FirstRow(item) * d_, {1, tokens, config_.heads, config_.head_dim});
    Attention(args, model_.pool_, model_.attention_workspace_);
  }

  void FeedForward(const WanBlockWeights& block) {
    const LayerNorm norm = Norm(Modulation(4), Modulation(3));
    TapNorm("ffn.input", norm);
    const int64_t row_bytes = config_.ffn_dim * static_cast<int64_t>(sizeof(float));
    const int64_t most = std::max<int64_t>(1, kFfnBytes / row_bytes / kFfnStep) * kFfnStep;
    const int64_t tiles = CeilDiv(tokens_, most);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const Range part = {tile * most, std::min(tokens_, (tile + 1) * most)};
      float* middle = model_.ffn_.Get<float>(std::min(tokens_, most) * config_.ffn_dim);
      auto normed = Timed([&](int64_t, int64_t first, int64_t count, float* rows) {
        LayerNormRows(norm, part.begin + first, count, rows);
      });
      LinearArgs args;
      args.weights = block.ffn_in.weights;
      args.x = RowProducer(normed);
      args.epilogue.bias = block.ffn_in.bias;
      args.epilogue.activation = Activation::kGeluTanh;
      args.y = View(middle, {part.size(), config_.ffn_dim});
      RunLinear(args);
      TapRows(block.ffn_out, middle, part);
      AddToHidden(block.ffn_out, middle, part, Modulation(5));
    }
    FlushRows("ffn.output");
  }

  void Head() {
    std::vector<float> shift(static_cast<size_t>(d_)), scale(static_cast<size_t>(d_));
    const std::span<const float> table = model_.weights_.modulation;
    for (size_t i = 0; i < shift.size(); ++i) {
      shift[i] = table[i] + temb_[i];
      scale[i] = 1.0f + (table[shift.size() + i] + temb_[i]);
    }
    const LayerNorm norm = Norm(scale.data(), shift.data());
    layer_ = -1;
    TapNorm("head.input", norm);
    auto normed = Normed(norm);
    Project(model_.weights_.proj_out, RowProducer(normed), out_);
  }

  // y [tokens][out] = x W^T + bias; columns: of y, empty: all.
  void Project(const WanLinear& layer, const LinearInput& x, float* y,
               std::span<const Range> columns = {}) {
    LinearArgs args;
    args.weights = layer.weights;
    args.x = x;
    args.columns = columns;
    args.epilogue.bias = layer.bias;
    args.y = View(y, {tokens_, layer.weights.Out()});
    RunLinear(args);
  }

  // hidden += gate * (x W^T + bias) for rows `part`; x: [part][inputs]; gate: [D] or null; inputs:
  // empty: all.
  void AddToHidden(const WanLinear& layer, const float* x, Range part, const float* gate,
                   std::span<const Range> inputs = {}) {
    LinearArgs args;
    args.weights = layer.weights;
    args.x = ConstView(x, {part.size(), TotalOf(inputs, layer.weights.In())});
    args.inputs = inputs;
    args.epilogue.bias = layer.bias;
    if (gate != nullptr) args.epilogue.gate = ConstView(gate, {d_});
    const View rows(hidden_ + part.begin * d_, {part.size(), d_});
    args.epilogue.residual = rows;
    args.y = rows;
    RunLinear(args);
  }

  void RunLinear(const LinearArgs& args) {
    if (pass_.times != nullptr) {
      pass_.times->linear_products += args.y.Extent(0) * TotalOf(args.columns, args.weights.Out()) *
                                      TotalOf(args.inputs, args.weights.In());
    }
    Spanned(ModelSpan::Kind::kLinear, [&] {
      CountSeconds(linear_seconds_, linear_fused_,
                   [&] { Linear(args, model_.pool_, model_.workspace_); });
    });
  }

  // inverse[row] of the norm over all heads of q or k.
  void Statistics(const float* x, int64_t stride, std::vector<float>& inverse) {
    Spanned(ModelSpan::Kind::kNorm, [&] {
      model_.pool_.ParallelFor(CeilDiv(tokens_, kStatisticsTokens), [&](int64_t task, int) {
        const int64_t first = task * kStatisticsTokens;
        InverseRms(x + first * stride, stride, d_, config_.eps,
                   std::min(kStatisticsTokens, tokens_ - first), inverse.data() + first);
      });
    });
  }

  // q or k of all heads, where the projection has put them. Not while attention packs its rows:
  // each is asked for several times, by sources of masks too and in other orders of tokens, one by
  // one.
  void NormAndRotateAll(float* x, std::span<const float> weight) {
    const int64_t stride = 3 * d_;
    for (int64_t item = 0; item < items_; ++item) {
      const Range home = pass_.home[static_cast<size_t>(item)];
      float* const rows = x + FirstRow(item) * stride;
      model_.pool_.ParallelFor(CeilDiv(home.size(), kStatisticsTokens), [&](int64_t task, int) {
        const int64_t first = task * kStatisticsTokens;
        const int64_t count = std::min(kStatisticsTokens, home.size() - first);
        float inverse[kStatisticsTokens];
        InverseRms(rows + first * stride, stride, d_, config_.eps, count, inverse);
        NormAndRotate({.x = rows + first * stride,
                       .stride = stride,
                       .heads = config_.heads,
                       .inverse_rms = inverse,
                       .weight = weight.data()},
                      model_.rope_, home.begin + first, count);
      });
    }
  }

  int64_t FirstRow(int64_t item) const { return first_row_[static_cast<size_t>(item)]; }
  int64_t RowOf(int64_t item, int64_t token) const {
    return FirstRow(item) + token - pass_.home[static_cast<size_t>(item)].begin;
  }
  int64_t ChannelOf(int64_t lane) const { return lane % config_.heads * config_.head_dim; }
  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(config_.head_dim)); }

  // --- Taps: compute again, beside the pass, what it does not keep ---

  std::string TapName(const char* name) const {
    return layer_ >= 0 ? fmt::format("block{}.{}", layer_, name) : name;
  }
  void Tap(const char* name, const float* data, int64_t width) {
    if (pass_.tap) pass_.tap(TapName(name), data, tokens_, width);
  }
  void TapNorm(const char* name, const LayerNorm& norm) {
    if (!pass_.tap) return;
    std::vector<float> rows(static_cast<size_t>(tokens_ * d_));
    LayerNormRows(norm, 0, tokens_, rows.data());
    Tap(name, rows.data(), d_);
  }
  template <typename Produce>
  void TapHeads(const char* name, const Produce& produce) {
    if (!pass_.tap) return;
    std::vector<float> rows(static_cast<size_t>(tokens_ * d_)), head(static_cast<size_t>(d_));
    for (int64_t item = 0; item < items_; ++item) {
      const Range home = pass_.home[static_cast<size_t>(item)];
      for (int64_t token = home.begin; token < home.end; ++token) {
        for (int64_t h = 0; h < config_.heads; ++h) {
          produce(item * config_.heads + h, token, 1, head.data());
          std::copy_n(head.data(), config_.head_dim,
                      rows.data() + RowOf(item, token) * d_ + h * config_.head_dim);
        }
      }
    }
    Tap(name, rows.data(), d_);
  }
  // attended W^T + bias, without gate and residual.
  void TapLinear(const char* name, const WanLinear& layer, std::span<const Range> inputs) {
    if (!pass_.tap) return;
    TapRows(layer, attended_, {0, tokens_}, inputs);
    FlushRows(name);
  }
  void TapRows(const WanLinear& layer, const float* x, Range part,
               std::span<const Range> inputs = {}) {
    if (!pass_.tap) return;
    tapped_.resize(static_cast<size_t>(tokens_ * d_));
    LinearArgs args;
    args.weights = layer.weights;
    args.x = ConstView(x, {part.size(), TotalOf(inputs, layer.weights.In())});
    args.inputs = inputs;
    args.epilogue.bias = layer.bias;
    args.y = View(tapped_.data() + part.begin * d_, {part.size(), d_});
    RunLinear(args);
  }
  void FlushRows(const char* name) {
    if (pass_.tap) Tap(name, tapped_.data(), d_);
  }

  WanTransformer& model_;
  const WanConfig& config_;
  const WanPass& pass_;
  float* const out_;
  const int64_t d_, items_;
  int64_t tokens_ = 0;              // at home, of all items
  std::vector<int64_t> first_row_;  // [items]
  int32_t layer_ = -1;
  float *hidden_ = nullptr, *qkv_ = nullptr, *attended_ = nullptr;
  std::vector<float> inverse_q_;     // [tokens], of cross attention
  std::vector<float> temb_, tproj_;  // [D], [6][D]
  AlignedBuffer<float> modulation_;  // [6][D], scales with 1 added
  std::vector<float> tapped_;

  std::atomic<int64_t> fused_nanoseconds_{0};
  double attention_seconds_ = 0.0, attention_fused_ = 0.0, linear_seconds_ = 0.0,
         linear_fused_ = 0.0;
};

WanTransformer::WanTransformer(const WanConfig& config, const WanWeights& weights, ThreadPool& pool,
                               Compute cross_attention)
    : config_(config), weights_(weights), pool_(pool), cross_attention_(cross_attention) {
  EQ_CHECK(static_cast<int64_t>(weights.blocks.size()) == config.layers);
}

WanText WanTransformer::Text(const ConstView& rows, int64_t text_tokens, WanTap tap) {
  const int64_t d = config_.Width();
  if (rows.Rank() != 2 || rows.Extent(1) != config_.text_dim || rows.Extent(0) > text_tokens ||
      text_tokens < 1) {
    throw InputError("[model] text {}: expected [rows, {}], at most {} rows",
                     rows.shape().ToString(), config_.text_dim, text_tokens);
  }
  const int64_t real = rows.Extent(0), zeros = text_tokens - real;
  WanText text;
  text.keys = real + (zeros > 0 ? 1 : 0);
  text.bias.assign(static_cast<size_t>(text.keys), 0.0f);
  if (zeros > 0) text.bias.back() = static_cast<float>(std::log(static_cast<double>(zeros)));

  auto linear = [&](const WanLinear& layer, const LinearInput& x, Activation activation, float* y) {
    LinearArgs args;
    args.weights = layer.weights;
    args.x = x;
    args.epilogue.bias = layer.bias;
    args.epilogue.activation = activation;
    args.y = View(y, {text.keys, layer.weights.Out()});
    Linear(args, pool_, workspace_);
  };
  auto padded = [&](int64_t, int64_t first, int64_t count, float* to) {
    for (int64_t t = first; t < first + count; ++t) {
      for (int64_t i = 0; i < config_.text_dim; ++i) *to++ = t < real ? rows.Load(t, i) : 0.0f;
    }
  };
  AlignedBuffer<float> middle(text.keys * d), projected(text.keys * d);
  linear(weights_.text_1, RowProducer(padded), Activation::kGeluTanh, middle.data());
  const Shape shape = {text.keys, d};
  linear(weights_.text_2, ConstView(middle.data(), shape), Activation::kNone, projected.data());
  if (tap) tap("text_projected", projected.data(), text.keys, d);

  text.kv = AlignedBuffer<float>(config_.layers * text.keys * 2 * d);
  std::vector<float> inverse(static_cast<size_t>(text.keys));
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    const WanBlockWeights& block = weights_.blocks[static_cast<size_t>(layer)];
    float* kv = text.kv.data() + layer * text.keys * 2 * d;
    linear(block.cross_kv, ConstView(projected.data(), shape), Activation::kNone, kv);
    InverseRms(kv, 2 * d, d, config_.eps, text.keys, inverse.data());
    for (int64_t t = 0; t < text.keys; ++t) {
      const NormedHead row = {.x = kv + t * 2 * d,
                              .inverse_rms = &inverse[static_cast<size_t>(t)],
                              .weight = block.cross_norm_k.data()};
      NormHeadRows(row, d, 1, kv + t * 2 * d);
    }
  }
  return text;
}

void WanTransformer::Forward(const WanPass& pass, float* out) { Pass(*this, pass, out).Run(); }

}  // namespace equitile

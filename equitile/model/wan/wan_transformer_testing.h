// Passes of a transformer on several ranks of one thread: every rank is a thread, and its
// self-attention waits until all have given their rows.
#pragma once

#include <barrier>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "equitile/kernel/attention/attention.h"
#include "equitile/kernel/rows/patches.h"
#include "equitile/model/wan/self_attention.h"
#include "equitile/model/wan/wan_transformer.h"
#include "equitile/pattern/token_place.h"
#include "equitile/tensor/tensor.h"

namespace equitile::testing {

inline bool SameBits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() &&
         std::memcmp(a.DataAs<float>(), b.DataAs<float>(),
                     static_cast<size_t>(a.Elements()) * sizeof(float)) == 0;
}

// Dense self-attention where all tokens are at home, as one call of the kernel: what the executor's
// is compared with.
class LocalAttention {
 public:
  LocalAttention(Lanes lanes, int64_t tokens, int64_t head_dim, ThreadPool& pool)
      : lanes_(lanes),
        grid_{.q_tokens = tokens, .kv_tokens = tokens},
        head_dim_(head_dim),
        pool_(pool),
        rows_(AttentionRows::Dense(lanes, grid_)) {}

  void operator()(const SelfAttentionCall& call) {
    AttentionArgs args;
    args.lanes = lanes_;
    args.grid = grid_;
    args.head_dim = head_dim_;
    args.scale = call.scale;
    args.rows = &rows_;
    args.q = call.q;
    args.k = call.k;
    args.v = call.v;
    args.out = View(call.out, {lanes_.batch, grid_.q_tokens, lanes_.heads, head_dim_});
    Attention(args, pool_, workspace_);
  }

 private:
  Lanes lanes_;
  BlockGrid grid_;
  int64_t head_dim_;
  ThreadPool& pool_;
  AttentionRows rows_;
  Workspace workspace_;
};

// Self-attention over ranks: each writes its q, k, v rows into one place; the first computes; each
// takes its part.
class GatheredRanks {
 public:
  GatheredRanks(const WanConfig& config, int64_t items, int64_t tokens, int ranks)
      : config_(config),
        items_(items),
        tokens_(tokens),
        pool_(1),
        attention_({.batch = items, .heads = config.heads}, tokens, config.head_dim, pool_),
        q_(Floats()),
        k_(Floats()),
        v_(Floats()),
        out_(Floats()),
        barrier_(ranks) {}

  void Call(const SelfAttentionCall& call, std::span<const Range> home, int rank) {
    const int64_t dim = config_.head_dim;
    ForHome(home, [&](int64_t item, int64_t token) {
      for (int64_t h = 0; h < config_.heads; ++h) {
        const int64_t lane = item * config_.heads + h, at = (lane * tokens_ + token) * dim;
        call.q(lane, token, 1, q_.data() + at);
        call.k(lane, token, 1, k_.data() + at);
        call.v(lane, token, 1, v_.data() + at);
      }
    });
    barrier_.arrive_and_wait();
    if (rank == 0) Compute(call);
    barrier_.arrive_and_wait();
    float* to = call.out;
    ForHome(home, [&](int64_t item, int64_t token) {
      const int64_t width = config_.Width();
      std::copy_n(out_.data() + (item * tokens_ + token) * width, width, to);
      to += width;
    });
    barrier_.arrive_and_wait();
  }

 private:
  AlignedBuffer<float> Floats() const {
    return AlignedBuffer<float>(items_ * tokens_ * config_.Width());
  }

  template <typename Visit>
  void ForHome(std::span<const Range> home, const Visit& visit) const {
    for (int64_t item = 0; item < items_; ++item) {
      const Range range = home[static_cast<size_t>(item)];
      for (int64_t token = range.begin; token < range.end; ++token) visit(item, token);
    }
  }

  void Compute(const SelfAttentionCall& call) {
    auto rows_of = [this](const AlignedBuffer<float>& rows) {
      return [this, &rows](int64_t lane, int64_t token, int64_t count, float* to) {
        std::copy_n(rows.data() + (lane * tokens_ + token) * config_.head_dim,
                    count * config_.head_dim, to);
      };
    };
    auto q = rows_of(q_), k = rows_of(k_), v = rows_of(v_);
    attention_({.layer = call.layer,
                .scale = call.scale,
                .q = RowProducer(q),
                .k = RowProducer(k),
                .v = RowProducer(v),
                .out = out_.data()});
  }

  const WanConfig& config_;
  const int64_t items_, tokens_;
  ThreadPool pool_;
  LocalAttention attention_;
  AlignedBuffer<float> q_, k_, v_;  // [lanes][tokens][head_dim]
  AlignedBuffer<float> out_;        // [items][tokens][D]
  std::barrier<> barrier_;
};

// Tiles of 64 tokens on the (item, token) line, in even parts: the homes of plan/core/home_map.h.
inline std::vector<Range> HomeOf(int64_t items, int64_t tokens, int rank, int ranks) {
  const int64_t tiles = CeilDiv(tokens, 64);
  const Range line = EvenPart(items * tiles, rank, ranks);
  std::vector<Range> home;
  for (int64_t item = 0; item < items; ++item) {
    auto token = [&](int64_t tile) {
      return std::min(tokens, std::clamp<int64_t>(tile - item * tiles, 0, tiles) * 64);
    };
    home.push_back({token(line.begin), token(line.end)});
  }
  return home;
}

// One pass, as velocities [items, channels, frames, height, width]. With one rank on `transformer`
// and the threads of `pool`, else on ranks with a transformer and one thread each.
inline Tensor RunPass(WanTransformer& transformer, std::span<const Tensor> latents,
                      std::span<const WanText> texts, float timestep, int ranks, ThreadPool& pool,
                      WanTap tap = {}, TokenOrder order = {}) {
  const WanConfig& config = transformer.config();
  const auto items = static_cast<int64_t>(latents.size());
  std::vector<ConstView> views(latents.begin(), latents.end());
  std::vector<const WanText*> text_pointers;
  for (const WanText& text : texts) text_pointers.push_back(&text);
  TokenGrid grid = PatchGrid(views[0], config.patch);
  grid.home = order;
  const std::vector<int32_t> places = PlaceOfToken(grid);
  const int64_t tokens = grid.VideoTokens();
  const Shape& shape = latents[0].shape();
  Tensor output(DType::kF32, {items, config.out_channels, shape[1], shape[2], shape[3]});

  auto run = [&](WanTransformer& model, const std::vector<Range>& home, SelfAttention attention) {
    int64_t count = 0;
    for (const Range& range : home) count += range.size();
    std::vector<float> rows(static_cast<size_t>(count * config.OutFeatures()));
    WanPass pass;
    pass.timestep = timestep;
    pass.latents = views;
    pass.texts = text_pointers;
    pass.home = home;
    pass.order = order;
    pass.attention = attention;
    pass.tap = tap;
    model.Forward(pass, rows.data());
    const float* from = rows.data();
    for (int64_t item = 0; item < items; ++item) {
      const Range range = home[static_cast<size_t>(item)];
      ScatterPatches(from, config.patch, range.begin, range.size(), output.view().Select(0, item),
                     places);
      from += range.size() * config.OutFeatures();
    }
  };
  if (ranks == 1) {
    LocalAttention attention({.batch = items, .heads = config.heads}, tokens, config.head_dim,
                             pool);
    run(transformer, HomeOf(items, tokens, 0, 1), SelfAttention(attention));
    return output;
  }
  GatheredRanks gathered(config, items, tokens, ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const std::vector<Range> home = HomeOf(items, tokens, rank, ranks);
      ThreadPool own(1);
      WanTransformer model(config, transformer.weights(), own);
      auto attention = [&](const SelfAttentionCall& call) { gathered.Call(call, home, rank); };
      run(model, home, SelfAttention(attention));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return output;
}

}  // namespace equitile::testing

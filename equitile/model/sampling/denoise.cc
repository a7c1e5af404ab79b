#include "equitile/model/sampling/denoise.h"

#include <algorithm>
#include <cmath>

#include "equitile/base/error.h"
#include "equitile/kernel/rows/patches.h"
#include "equitile/model/sampling/noise.h"
#include "equitile/pattern/token_place.h"
#include "equitile/plan/core/home_map.h"

namespace equitile {
namespace {

constexpr int32_t kVelocityTag = Communicator::kMaxTag;  // far from the tags of self-attention

int64_t Total(std::span<const Range> ranges) {
  int64_t total = 0;
  for (const Range& range : ranges) total += range.size();
  return total;
}

class Loop {
 public:
  Loop(WanTransformer& transformer, Communicator& comm, const DenoiseJob& job)
      : transformer_(transformer),
        comm_(comm),
        job_(job),
        videos_(job.seeds.empty() ? 1 : std::ssize(job.seeds)),
        items_(static_cast<int64_t>(job.texts.size())),
        shape_{transformer.config().in_channels, job.config.LatentFrames(),
               job.config.LatentHeight(), job.config.LatentWidth()},
        sampler_(job.config.sampler, job.config.steps, job.config.flow_shift),
        latents_(static_cast<size_t>(videos_ * shape_.Elements())) {
    EQ_CHECK(items_ == videos_ * job.config.Passes(), "{} texts for {} passes of {} videos", items_,
             job.config.Passes(), videos_);
    if (transformer.config().out_channels != transformer.config().in_channels) {
      throw InputError("[model] the transformer makes {} channels of {}; a sampler needs as many",
                       transformer.config().out_channels, transformer.config().in_channels);
    }
    const int64_t tokens = VideoTokens(transformer.config(), job.config);
    for (int32_t rank = 0; rank < comm.size(); ++rank) {
      homes_.push_back(HomeTokens(items_, transformer.config().heads, tokens, rank, comm.size()));
    }
    out_ = AlignedBuffer<float>(Total(Home()) * Features());
    if (!Leads()) return;
    places_ = PlaceOfToken(VideoGrid(transformer.config(), job.config));
    for (int64_t item = 0; item < items_; ++item) velocity_.emplace_back(DType::kF32, shape_);
    guided_.resize(latents_.size());
    for (int32_t rank = 1; rank < comm.size(); ++rank) {
      arrivals_.emplace_back(Total(homes_[static_cast<size_t>(rank)]) * Features());
    }
  }

  DenoiseResult Run() {
    int64_t step = Begin();
    bool stopping = false;
    while (step < sampler_.steps() && !stopping) {
      const double begin = comm_.Now();
      comm_.SetPlace(static_cast<int32_t>(step) + 1, -1, -1);  // counted from 1, as layers do
      WanTimes times;
      const bool skips = Skips(step);
      if (skips) {
        if (Leads()) job_.cache->FillIn(latents_, velocity_);
      } else {
        Forward(step, times);
        Spanned(ModelSpan::Kind::kExchange, step, [&] { GatherVelocity(); });
        if (Leads() && job_.cache != nullptr) job_.cache->Computed(step, latents_, velocity_);
      }
      stopping = AnyoneStops();
      if (Leads()) Spanned(ModelSpan::Kind::kSample, step, [&] { Advance(); });
      Spanned(ModelSpan::Kind::kExchange, step, [&] { ShareLatents(); });
      ++step;
      if (Leads() && job_.after_step) {
        job_.after_step({.done = step,
                         .steps = sampler_.steps(),
                         .seconds = comm_.Now() - begin,
                         .sampler = &sampler_,
                         .latents = latents_,
                         .velocity = guided_,
                         .passes = velocity_,
                         .times = times,
                         .skipped = skips,
                         .stopping = stopping && step < sampler_.steps()});
      }
    }
    comm_.SetPlace(-1, -1, -1);  // what follows is no step
    return {.latents = std::move(latents_), .finished = step == sampler_.steps()};
  }

 private:
  bool Leads() const { return comm_.rank() == 0; }
  std::span<const Range> Home() const { return homes_[static_cast<size_t>(comm_.rank())]; }
  int64_t Features() const { return transformer_.config().OutFeatures(); }
  int64_t Passes() const { return items_ / videos_; }
  std::span<float> LatentsOf(int64_t video) {
    const auto size = static_cast<size_t>(shape_.Elements());
    return std::span(latents_).subspan(static_cast<size_t>(video) * size, size);
  }

  template <typename Work>
  void Spanned(ModelSpan::Kind kind, int64_t step, const Work& work) {
    if (!job_.on_span) return work();
    const double begin = comm_.Now();
    work();
    job_.on_span(
        {.kind = kind, .step = static_cast<int32_t>(step), .begin = begin, .end = comm_.Now()});
  }

  // Noise or what was stored; returns the first step.
  int64_t Begin() {
    uint64_t step = 0;
    if (Leads() && job_.resume != nullptr) {
      EQ_CHECK(job_.resume->latents.size() == latents_.size(), "{} latents for {}",
               job_.resume->latents.size(), latents_.size());
      sampler_.Restore(job_.resume->sampler);
      latents_ = job_.resume->latents;
      step = static_cast<uint64_t>(sampler_.step());
    } else if (Leads()) {
      for (int64_t video = 0; video < videos_; ++video) {
        const uint64_t seed =
            job_.seeds.empty() ? job_.config.seed : job_.seeds[static_cast<size_t>(video)];
        FillNoise(job_.config.rng, seed, LatentsOf(video));
      }
    }
    ShareLatents();
    comm_.Broadcast(std::as_writable_bytes(std::span(&step, 1)), 0);
    return static_cast<int64_t>(step);
  }

  void ShareLatents() { comm_.Broadcast(std::as_writable_bytes(std::span(latents_)), 0); }

  // Rank 0's decision for everybody. Collective.
  bool Skips(int64_t step) {
    if (job_.cache == nullptr) return false;
    uint64_t skips = Leads() && job_.cache->Skips(step, sampler_.steps(), latents_) ? 1 : 0;
    comm_.Broadcast(std::as_writable_bytes(std::span(&skips, 1)), 0);
    return skips != 0;
  }

  void Forward(int64_t step, WanTimes& times) {
    std::vector<ConstView> views;
    for (int64_t item = 0; item < items_; ++item)
      views.emplace_back(LatentsOf(item / Passes()).data(), shape_);
    const auto now = [this] { return comm_.Now(); };
    const Schedule& schedule = sampler_.schedule();
    const auto at = static_cast<size_t>(step);
    transformer_.Forward({.step = static_cast<int32_t>(step),
                          .sigma = schedule.sigmas[at],
                          .timestep = schedule.timesteps[at],
                          .latents = views,
                          .texts = job_.texts,
                          .home = Home(),
                          .order = job_.config.token_order,
                          .attention = job_.attention,
                          .skipped_heads = job_.skipped_heads,
                          .tap = {},
                          .times = &times,
                          .now = now,
                          .on_span = job_.on_span},
                         out_.data());
  }

  void Scatter(const float* rows, std::span<const Range> home) {
    for (size_t item = 0; item < home.size(); ++item) {
      ScatterPatches(rows, transformer_.config().patch, home[item].begin, home[item].size(),
                     velocity_[item], places_);
      rows += home[item].size() * Features();
    }
  }

  void GatherVelocity() {
    if (!Leads()) {
      CommRequest sent = comm_.Send(std::as_bytes(out_.span()), 0, kVelocityTag);
      comm_.Wait(sent);
      return;
    }
    std::vector<CommRequest> requests;
    for (int32_t rank = 1; rank < comm_.size(); ++rank) {
      requests.push_back(
          comm_.Receive(std::as_writable_bytes(arrivals_[static_cast<size_t>(rank - 1)].span()),
                        rank, kVelocityTag));
    }
    Scatter(out_.data(), Home());
    for (size_t i = 0; i < requests.size(); ++i) {
      comm_.Wait(requests[i]);
      Scatter(arrivals_[i].data(), homes_[i + 1]);
    }
  }

  bool AnyoneStops() {
    uint64_t stop = job_.stop_requested && job_.stop_requested() ? 1 : 0;
    comm_.AllReduce(std::span(&stop, 1), Reduce::kMax);
    return stop != 0;
  }

  // What the sampler is given: the only pass, or both of them with guidance.
  void Guide(int64_t video) {
    const auto size = static_cast<size_t>(shape_.Elements());
    float* guided = guided_.data() + static_cast<size_t>(video) * size;
    const auto first = static_cast<size_t>(video * Passes());
    const float* cond = velocity_[first].DataAs<float>();
    if (Passes() == 1) {
      std::copy_n(cond, size, guided);
      return;
    }
    const auto guidance = static_cast<float>(job_.config.guidance);
    const float* uncond = velocity_[first + 1].DataAs<float>();
    for (size_t i = 0; i < size; ++i) guided[i] = uncond[i] + guidance * (cond[i] - uncond[i]);
  }

  void Advance() {
    for (int64_t video = 0; video < videos_; ++video) Guide(video);
    sampler_.Step(guided_, latents_);
    for (float value : latents_) {
      if (!std::isfinite(value)) {
        throw Error(
            "[model] step {}: the latents are no longer finite; weights or prompt cannot "
            "be right",
            sampler_.step());
      }
    }
  }

  WanTransformer& transformer_;
  Communicator& comm_;
  const DenoiseJob& job_;
  int64_t videos_, items_;
  Shape shape_;      // of one video's latents
  Sampler sampler_;  // its schedule on every rank, its state on rank 0
  std::vector<float> latents_;
  std::vector<std::vector<Range>> homes_;  // [ranks][items]
  AlignedBuffer<float> out_;               // [home tokens][features]
  std::vector<int32_t> places_;            // of tokens (PlaceOfToken), rank 0
  std::vector<Tensor> velocity_;           // [items], rank 0
  std::vector<float> guided_;              // [videos], rank 0
  std::vector<AlignedBuffer<float>> arrivals_;
};

}  // namespace

std::vector<Range> HomeTokens(int64_t items, int64_t heads, int64_t tokens, int32_t rank,
                              int32_t ranks) {
  const HomeMap homes({.ranks = ranks,
                       .lanes = {.batch = items, .heads = heads},
                       .grid = {.q_tokens = tokens, .kv_tokens = tokens},
                       .token_grid = {},
                       .orders = {}});
  std::vector<Range> home;
  for (int64_t item = 0; item < items; ++item) {
    home.push_back(homes.RankTokens(Side::kQuery, rank, item));
  }
  return home;
}

TokenGrid VideoGrid(const WanConfig& model, const GenerationConfig& config) {
  return {.frames = config.LatentFrames() / model.patch.frames,
          .height = config.LatentHeight() / model.patch.height,
          .width = config.LatentWidth() / model.patch.width,
          .home = config.token_order};
}

int64_t VideoTokens(const WanConfig& model, const GenerationConfig& config) {
  return VideoGrid(model, config).VideoTokens();
}

DenoiseResult Denoise(WanTransformer& transformer, Communicator& comm, const DenoiseJob& job) {
  return Loop(transformer, comm, job).Run();
}

}  // namespace equitile

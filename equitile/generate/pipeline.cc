#include "equitile/generate/pipeline.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "equitile/base/error.h"
#include "equitile/base/topology.h"
#include "equitile/exec/agree.h"
#include "equitile/exec/calibrate.h"
#include "equitile/exec/trace.h"
#include "equitile/io/arrays/safetensors.h"
#include "equitile/io/records/machine_file.h"
#include "equitile/model/text/text_clean.h"
#include "equitile/model/text/umt5.h"
#include "equitile/model/vae/vae_tiling.h"
#include "equitile/sparsity/source/share_state.h"

namespace equitile {
namespace {

constexpr const char* kRates = "rates";  // in a SourceState

// Latent frames decoded before one that a preview shows. A decoder takes the first that it gets for
// a picture, and reads colours of later ones wrongly so; with two before it they are right.
constexpr int64_t kPreviewPrefix = 2;

// Thrown by what is reported to while one rank works for all, caught before they meet again.
struct Stopped {};

RunEvent::Kind KindOf(ModelSpan::Kind kind) {
  switch (kind) {
    case ModelSpan::Kind::kLinear:
      return RunEvent::Kind::kLinear;
    case ModelSpan::Kind::kNorm:
      return RunEvent::Kind::kNorm;
    case ModelSpan::Kind::kTextAttention:
      return RunEvent::Kind::kTextAttention;
    case ModelSpan::Kind::kExchange:
      return RunEvent::Kind::kExchange;
    case ModelSpan::Kind::kSample:
      return RunEvent::Kind::kSample;
  }
  EQ_CHECK(false, "span of kind {}", static_cast<int>(kind));
}

// Traces count steps from 1.
void AddTo(Trace& trace, const ModelSpan& span) {
  trace.Add(RunEvent{.kind = KindOf(span.kind), .begin = span.begin, .end = span.end},
            span.step + 1, span.layer);
}

}  // namespace

void CheckVaeFits(const CheckpointFolder& folder, const VaeConfig& vae, const WanConfig& model) {
  if (vae.z_dim != model.out_channels) {
    throw InputError("[model] {}: the VAE decodes {} channels, the transformer makes {}",
                     folder.root().string(), vae.z_dim, model.out_channels);
  }
  if (vae.SpatialScale() != 8 || vae.TemporalScale() != 4) {
    throw InputError(
        "[model] {}: the VAE makes {} pixels and {} frames of a latent; must be 8 and 4",
        folder.root().string(), vae.SpatialScale(), vae.TemporalScale());
  }
}

Pipeline::Pipeline(const CheckpointFolder& folder, Communicator& comm, ThreadPool& pool,
                   PipelineOptions options)
    : folder_(folder),
      comm_(comm),
      pool_(pool),
      options_(std::move(options)),
      config_(ReadWanConfig(folder.Config("transformer"))),
      parts_(options_.parts != nullptr ? options_.parts : std::make_shared<LoadedParts>()) {
  AgreeOnArithmetic(comm);
}

Pipeline::~Pipeline() = default;

bool Pipeline::AnyoneIsAsked() {
  if (!options_.stop_requested) return false;
  uint64_t asked = IsAsked() ? 1 : 0;
  comm_.AllReduce(std::span(&asked, 1), Reduce::kMax);
  return asked != 0;
}

bool Pipeline::Load() {
  if (transformer_ != nullptr) return !AnyoneIsAsked();
  const TraceScope scope(options_.trace, RunEvent::Kind::kLoad);
  if (!parts_->transformer && !LoadTransformer()) return false;
  transformer_ =
      std::make_unique<WanTransformer>(config_, *parts_->transformer, pool_, options_.attention);
  executor_ = std::make_unique<Executor>(comm_, pool_, ExecutorOptions{.wire = options_.wire});
  return true;
}

bool Pipeline::LoadTransformer() {
  const TensorFiles files = TensorFiles::OpenFolder(folder_.Part("transformer"));
  WanWeights::Check(files, config_);
  const auto report = [&](int64_t done, int64_t total) {
    comm_.Poll();
    if (options_.on_load && comm_.rank() == 0) options_.on_load("transformer", done, total);
    if (IsAsked()) throw Stopped();
  };
  NodeCopy copy(comm_, WanWeights::Bytes(config_, options_.weights), [&](std::span<std::byte> to) {
    try {
      WanWeights::Pack(files, config_, options_.weights, to, pool_, report);
    } catch (const Stopped&) {
    }
  });
  if (AnyoneIsAsked()) return false;
  parts_->transformer_bytes = std::move(copy);
  parts_->transformer.emplace(config_, options_.weights, parts_->transformer_bytes.bytes());
  return true;
}

// Where ranks share cores, what they measure is each other. All decide alike. Collective.
bool Pipeline::CanMeasure() {
  const int sharing = comm_.name() == "threads" ? comm_.size() : RanksOnNode();
  uint64_t crowded = !comm_.simulated() && sharing > AllowedCores() ? 1 : 0;
  comm_.AllReduce(std::span(&crowded, 1), Reduce::kMax);
  return crowded == 0;
}

// Whether another layout would give other bits: rows may be split between ranks, or what travels is
// rounded.
bool Pipeline::BitsDependOnPlans(int64_t passes) const {
  const int32_t ranks = comm_.size();
  return ranks > 1 &&
         (options_.wire != DType::kF32 || MaySplitRows(ParsePlanner(options_.planner, ranks),
                                                       passes, ranks, options_.plan.reproducible));
}

void Pipeline::PlanForMachine(const BlockGrid& grid, const SourceState& resume, PlanOptions& plan) {
  rates_.reset();
  // Rates decide between layouts, and on making plans anew.
  if (comm_.size() == 1 || !Chooses(ParsePlannerKind(options_.planner))) return;
  Machine machine;
  if (options_.machine) {
    machine = AgreeOnMachine(comm_, *options_.machine);
  } else if (const auto stored = resume.find(kRates); stored != resume.end()) {
    machine = ParseMachineFile(
        {reinterpret_cast<const char*>(stored->second.data()), stored->second.size()},
        "the checkpoint's rates");
  } else if (CanMeasure()) {
    machine = Calibrate(comm_, pool_,
                        {.head_dims = {config_.head_dim},
                         .blocks = {grid.block_tokens},
                         .computes = {options_.attention}});
  }
  rates_ = machine;
  plan.cluster.wire = {.head_dim = config_.head_dim, .value_bytes = DTypeBytes(options_.wire)};
  ApplyMachine(machine, grid.block_tokens, ComputeName(options_.attention), plan.cluster);
  plan.cost = CostInPicoseconds(plan.cluster, grid);
}

// Masks are a video's own; the plans made for them may serve the next one too.
void Pipeline::PrepareAttention(const GenerationConfig& config, const DenoiseHooks& hooks,
                                const SourceState& resume) {
  const int64_t tokens = VideoTokens(config_, config), passes = config.Passes();
  const SourceContext context{
      .comm = &comm_,
      .pool = &pool_,
      .lanes = {.batch = passes, .heads = config_.heads},
      .grid = options_.sparsity.GridFor(tokens),
      .token_grid = VideoGrid(config_, config),
      .head_dim = config_.head_dim,
      .layers = config_.layers,
      .sigmas = MakeSchedule(config.sampler, config.steps, config.flow_shift).sigmas,
      .executor = executor_.get()};
  std::unique_ptr<MaskSource> source = MakeMaskSource(options_.sparsity, context);
  std::unique_ptr<AttentionWatch> watch;
  if (hooks.watch.IsAnything())
    watch = std::make_unique<AttentionWatch>(*executor_, context, hooks.watch);
  cache_.reset();
  if (options_.sparsity.cache_bound) {
    cache_ = std::make_unique<EasyCache>(EasyCacheOptions{
        .bound = *options_.sparsity.cache_bound, .first_steps = options_.sparsity.ComputedSteps()});
  }
  const bool matters = BitsDependOnPlans(passes);
  if (attention_ == nullptr || tokens != attention_tokens_ || passes != attention_passes_ ||
      (matters && resume.contains(kRates))) {
    PlanOptions plan = options_.plan;
    PlanForMachine(context.grid, resume, plan);
    attention_ =
        std::make_unique<LayerAttention>(*executor_, nullptr,
                                         LayerAttention::Options{.planner = options_.planner,
                                                                 .plan = std::move(plan),
                                                                 .rule = options_.rule,
                                                                 .bits_depend_on_plans = matters,
                                                                 .plan_clock = options_.plan_clock,
                                                                 .trace = options_.trace,
                                                                 .head_dim = config_.head_dim,
                                                                 .layers = config_.layers,
                                                                 .compute = options_.attention});
    if (!matters) rates_.reset();
    attention_tokens_ = tokens;
    attention_passes_ = passes;
  }
  attention_->Begin(std::move(source), std::move(watch),
                    hooks.repeats == nullptr ? std::nullopt : std::optional(*hooks.repeats));
  if (resume.empty()) return;
  attention_->Restore(resume);
  if (cache_ != nullptr) cache_->Restore(resume);
}

SourceState Pipeline::SparsityState() const {
  SourceState state = attention_->State();
  if (cache_ != nullptr) state.merge(cache_->State());
  if (rates_) {
    const std::string text = MachineFileText(*rates_);
    const auto bytes = std::as_bytes(std::span(text));
    state[kRates] = {bytes.begin(), bytes.end()};
  }
  return state;
}

std::vector<PromptRows> Pipeline::EncodeHere(std::span<const std::string> prompts,
                                             int64_t text_rows) {
  const Umt5Encoder encoder(folder_.Part("text_encoder"));
  if (encoder.config().d_model != config_.text_dim) {
    throw InputError("[model] {}: the text encoder is {} wide, the transformer expects {}",
                     folder_.root().string(), encoder.config().d_model, config_.text_dim);
  }
  const Tokenizer tokenizer = Tokenizer::Open(folder_.Part("tokenizer"), options_.tokenizer);
  std::vector<std::vector<int32_t>> ids;
  for (const std::string& prompt : prompts) {
    ids.push_back(tokenizer.Encode(CleanPrompt(prompt), text_rows));
  }
  const auto report = [&](int64_t done, int64_t layers) {
    comm_.Poll();
    if (options_.on_load) options_.on_load("text", done, layers);
    if (IsAsked()) throw Stopped();
  };
  return encoder.Encode(ids, pool_, report, options_.text);
}

std::vector<PromptRows> Pipeline::Encode(std::span<const std::string> prompts, int64_t text_rows) {
  std::vector<PromptRows> encoded(prompts.size());
  try {
    if (comm_.rank() == 0) {
      const TraceScope scope(options_.trace, RunEvent::Kind::kText);
      encoded = EncodeHere(prompts, text_rows);
    }
  } catch (const Stopped&) {
  }
  const TraceScope scope(options_.trace, RunEvent::Kind::kExchange);
  if (AnyoneIsAsked()) return {};
  for (PromptRows& rows : encoded) {
    int64_t count = comm_.rank() == 0 ? rows.shape()[0] : 0;
    comm_.Broadcast(std::as_writable_bytes(std::span(&count, 1)), 0);
    if (comm_.rank() != 0) rows = Tensor(DType::kF32, {count, config_.text_dim});
    comm_.Broadcast(std::as_writable_bytes(
                        std::span(rows.DataAs<float>(), static_cast<size_t>(rows.Elements()))),
                    0);
  }
  return encoded;
}

DenoiseResult Pipeline::Denoise(const GenerationConfig& config, const PromptRows& prompt,
                                const PromptRows& negative, const DenoiseHooks& hooks) {
  if (!Load()) return {};
  const bool resumes = hooks.resume != nullptr && hooks.resume_sparsity != nullptr;
  PrepareAttention(config, hooks,
                   ShareState(comm_, resumes ? *hooks.resume_sparsity : SourceState()));
  std::vector<WanText> texts;
  {
    const TraceScope scope(options_.trace, RunEvent::Kind::kText);
    texts.push_back(transformer_->Text(prompt, config.text_rows));
    if (config.Passes() == 2) texts.push_back(transformer_->Text(negative, config.text_rows));
  }
  std::vector<const WanText*> views;
  for (const WanText& text : texts) views.push_back(&text);
  const auto skipped_heads = [&](const ComingLayer& layer) {
    return attention_->SkippedHeads(layer);
  };
  const auto stop = [&] { return IsAsked(); };
  const auto after_step = [&](const DenoiseStep& step) {
    if (hooks.after_step) hooks.after_step(step);
  };
  const auto trace = [&](const ModelSpan& span) { AddTo(*options_.trace, span); };
  return equitile::Denoise(
      *transformer_, comm_,
      {.config = config,
       .texts = views,
       .attention = *attention_,
       .skipped_heads = skipped_heads,
       .cache = cache_.get(),
       .stop_requested = stop,
       .after_step = after_step,
       .resume = hooks.resume,
       .on_span = options_.trace != nullptr ? ModelSpanSink(trace) : ModelSpanSink()});
}

WanTransformer& Pipeline::Transformer() {
  EQ_CHECK(transformer_ != nullptr || Load());
  return *transformer_;
}

Executor& Pipeline::Attention() {
  EQ_CHECK(executor_ != nullptr || Load());
  return *executor_;
}

const VaeWeights& Pipeline::Vae() {
  const std::lock_guard lock(parts_->vae_mutex);
  const auto loaded = parts_->vae.find(options_.vae);
  if (loaded != parts_->vae.end()) return loaded->second;
  const TraceScope scope(options_.trace, RunEvent::Kind::kLoad);
  VaeWeights vae = LoadVaeWeights(folder_.Part("vae"), pool_, options_.vae);
  CheckVaeFits(folder_, vae.config, config_);
  return parts_->vae.emplace(options_.vae, std::move(vae)).first->second;
}

bool Pipeline::Decode(const GenerationConfig& config, std::span<const float> latents,
                      VaeFrameSink sink) {
  const VaeWeights& vae = Vae();
  const ConstView view(latents.data(), LatentShape(config));
  std::optional<TraceScope> scope;  // of a latent frame
  const auto go_on = [&] {
    scope.reset();
    const bool goes_on = !AnyoneIsAsked();
    scope.emplace(options_.trace, RunEvent::Kind::kDecode);
    return goes_on;
  };
  scope.emplace(options_.trace, RunEvent::Kind::kDecode);
  return options_.tiles_vae ? DecodeVideoTiled(vae, view, {}, pool_, &comm_, sink, go_on)
                            : DecodeVideo(vae, view, pool_, &comm_, sink, go_on);
}

std::vector<float> Pipeline::Preview(const GenerationConfig& config, std::span<const float> latents,
                                     int64_t frames) {
  const VaeWeights& vae = Vae();
  const Shape shape = LatentShape(config);
  frames = std::min(frames, shape[1]);
  const ConstView view(latents.data(), shape);
  std::vector<float> strip;
  for (int64_t i = 0; i < frames; ++i) {
    VaeDecoder decoder(vae, shape[2], shape[3], pool_);
    const int64_t row = 3 * decoder.Width();
    strip.resize(static_cast<size_t>(decoder.Height() * frames * row));
    const auto show = [&](int64_t, std::span<const float> rgb) {  // the last frame stays
      for (int64_t y = 0; y < decoder.Height(); ++y) {
        std::copy_n(rgb.begin() + y * row, row, strip.begin() + (y * frames + i) * row);
      }
    };
    const int64_t shown = i * shape[1] / frames;
    for (int64_t t = std::max<int64_t>(0, shown - kPreviewPrefix); t <= shown; ++t) {
      decoder.Push(view.Select(1, t), show);
    }
  }
  return strip;
}

Shape Pipeline::LatentShape(const GenerationConfig& config) const {
  return {config_.out_channels, config.LatentFrames(), config.LatentHeight(), config.LatentWidth()};
}

}  // namespace equitile

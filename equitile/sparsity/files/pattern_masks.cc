#include "equitile/sparsity/files/pattern_masks.h"

#include <algorithm>

#include "equitile/base/error.h"

namespace equitile {
namespace {

// Masks in force of a part are stored under the part's own name.
std::string PrefixOf(int64_t range, int32_t layer) {
  return fmt::format("part.{}.{}.", range, layer);
}

// The same blocks, with this tail on every lane that is not skipped.
LaneMasks WithTail(const LaneMasks& modes, Tail tail, std::span<const int64_t> skipped) {
  LaneMasks::Parts parts{.blocks = modes.blocks(),
                         .token_grid = modes.token_grid(),
                         .orders = modes.orders(),
                         .tails = {}};
  const Lanes& lanes = modes.blocks().lanes();
  for (int64_t lane = 0; lane < lanes.Count(); ++lane) {
    const bool is_skipped = std::ranges::binary_search(skipped, lanes.HeadOf(lane));
    const bool has_own = tail == Tail::kNone || is_skipped;
    parts.tails.push_back(has_own ? modes.TailOf(lane) : tail);
  }
  return LaneMasks(std::move(parts));
}

}  // namespace

HeadMass PredictMassOf(std::shared_ptr<const PatternFile> file, double otherwise) {
  return [file = std::move(file), otherwise](double sigma, int64_t layer, int64_t head) {
    return file->HeadsAt(sigma, layer)[static_cast<size_t>(head)].predict_mass.value_or(otherwise);
  };
}

HeadMass ObserveMassOf(std::shared_ptr<const PatternFile> file, double otherwise) {
  return [file = std::move(file), otherwise](double sigma, int64_t layer, int64_t head) {
    return file->HeadsAt(sigma, layer)[static_cast<size_t>(head)].observe_mass.value_or(otherwise);
  };
}

LayerWeight ErrorWeightOf(std::shared_ptr<const PatternFile> file) {
  if (file->error_weights.empty()) return {};
  return [file = std::move(file)](double sigma, int64_t layer) {
    return file->ErrorWeightAt(sigma, layer);
  };
}

LaneMasks PatternMasksAt(const PatternFile& file, const SourceContext& context, double sigma,
                         int64_t layer) {
  std::vector<HeadPattern> heads;
  for (const PatternHead& head : file.HeadsAt(sigma, layer))
    heads.push_back(OnGrid(head.pattern, file.grid, context.token_grid));
  return MakePatternMasks(heads, context.lanes.batch, context.token_grid,
                          context.grid.block_tokens);
}

PatternMasks::PatternMasks(const SourceContext& context, std::shared_ptr<const PatternFile> file,
                           std::optional<FillUp> fill_up)
    : context_(context), file_(std::move(file)), fill_up_(std::move(fill_up)) {
  const auto* by_error = fill_up_ ? std::get_if<ErrorOptions>(&fill_up_->by) : nullptr;
  if (by_error != nullptr) maker_ = std::make_shared<ErrorMaskMaker>(context, by_error->making);
}

std::unique_ptr<MaskSource> PatternMasks::Filled(const LaneMasks& modes) const {
  const std::vector<int64_t> skipped = equitile::SkippedHeads(modes);
  LaneMasks base = WithTail(modes, fill_up_->tail, skipped);
  const auto fill = [&](auto options) -> std::unique_ptr<MaskSource> {
    options.skipped = skipped;
    if constexpr (std::is_same_v<decltype(options), ErrorOptions>) {
      return std::make_unique<ErrorMasks>(context_, std::move(base), std::move(options), maker_);
    } else {
      return std::make_unique<PredictMasks>(context_, std::move(base), std::move(options));
    }
  };
  return std::visit(fill, fill_up_->by);
}

// Blocks that are chosen by error depend on a range by the heads that it skips alone: ranges that
// skip the same ones go on with one another's masks and orders, as `predict` does.
int64_t PatternMasks::RangeOf(double sigma, int32_t layer) const {
  const size_t range = file_->RangeAt(sigma);
  if (!maker_) return static_cast<int64_t>(range);
  const auto heads_of = [&](size_t i) -> const std::vector<PatternHead>& {
    return file_->ranges[i].layers[static_cast<size_t>(layer)];
  };
  const auto is_skipped = [](const PatternHead& head) {
    return head.pattern.mode == HeadMode::kSkip;
  };
  size_t first = 0;
  while (!std::ranges::equal(heads_of(first), heads_of(range), {}, is_skipped, is_skipped)) ++first;
  return static_cast<int64_t>(first);
}

PatternMasks::Part& PatternMasks::At(double sigma, int32_t layer) {
  const int64_t range = RangeOf(sigma, layer);
  const auto [entry, is_new] = parts_.try_emplace({range, layer});
  Part& part = entry->second;
  if (!is_new) return part;
  part.modes = PatternMasksAt(*file_, context_, sigma, layer);
  if (!fill_up_) return part;
  part.filled = Filled(part.modes);
  const std::string prefix = PrefixOf(range, layer);
  SourceState own;
  for (auto entry = restored_.lower_bound(prefix);
       entry != restored_.end() && entry->first.starts_with(prefix);
       entry = restored_.erase(entry)) {
    own[entry->first.substr(prefix.size())] = std::move(entry->second);
  }
  part.filled->Restore(own);
  return part;
}

LaneMasks PatternMasks::MaskFor(const SelfAttentionCall& call) {
  Part& part = At(call.sigma, call.layer);
  return part.filled ? part.filled->MaskFor(call) : part.modes;
}

std::vector<int64_t> PatternMasks::SkippedHeads(const ComingLayer& layer) {
  return equitile::SkippedHeads(At(layer.sigma, layer.layer).modes);
}

int64_t PatternMasks::Bytes() const {
  int64_t bytes = maker_ ? maker_->Bytes() : 0;
  for (const auto& [key, part] : parts_)
    bytes += part.modes.Bytes() + (part.filled ? part.filled->Bytes() : 0);
  return bytes;
}

SourceState PatternMasks::State() const {
  SourceState state = restored_;
  for (const auto& [key, part] : parts_) {
    if (!part.filled) continue;
    for (auto& [name, bytes] : part.filled->State())
      state[PrefixOf(key.first, key.second) + name] = bytes;
  }
  return state;
}

}  // namespace equitile

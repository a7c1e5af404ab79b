#include "equitile/sparsity/pattern_masks.h"

#include <algorithm>

#include "equitile/base/error.h"

namespace equitile {
namespace {

// Masks in force of a part are stored under the part's own name.
std::string PrefixOf(int64_t range, int32_t layer) {
  return fmt::format("part.{}.{}.", range, layer);
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

LaneMasks PatternMasksAt(const PatternFile& file, const SourceContext& context, double sigma,
                         int64_t layer) {
  std::vector<HeadPattern> heads;
  for (const PatternHead& head : file.HeadsAt(sigma, layer))
    heads.push_back(OnGrid(head.pattern, file.grid, context.token_grid));
  return MakePatternMasks(heads, context.lanes.batch, context.token_grid,
                          context.grid.block_tokens);
}

PatternMasks::PatternMasks(const SourceContext& context, std::shared_ptr<const PatternFile> file,
                           std::optional<PredictOptions> predict)
    : context_(context), file_(std::move(file)), predict_(std::move(predict)) {}

PatternMasks::Part& PatternMasks::At(double sigma, int32_t layer) {
  const auto range = static_cast<int64_t>(file_->RangeAt(sigma));
  const auto [entry, is_new] = parts_.try_emplace({range, layer});
  Part& part = entry->second;
  if (!is_new) return part;
  part.modes = PatternMasksAt(*file_, context_, sigma, layer);
  if (!predict_) return part;
  part.predicted = std::make_unique<PredictMasks>(context_, part.modes, *predict_);
  const std::string prefix = PrefixOf(range, layer);
  SourceState own;
  for (const auto& [name, bytes] : restored_) {
    if (name.starts_with(prefix)) own[name.substr(prefix.size())] = bytes;
  }
  part.predicted->Restore(own);
  return part;
}

LaneMasks PatternMasks::MaskFor(const SelfAttentionCall& call) {
  Part& part = At(call.sigma, call.layer);
  return part.predicted ? part.predicted->MaskFor(call) : part.modes;
}

std::vector<int64_t> PatternMasks::SkippedHeads(const ComingLayer& layer) {
  if (predict_) return {};
  return equitile::SkippedHeads(At(layer.sigma, layer.layer).modes);
}

int64_t PatternMasks::Bytes() const {
  int64_t bytes = 0;
  for (const auto& [key, part] : parts_)
    bytes += part.modes.Bytes() + (part.predicted ? part.predicted->Bytes() : 0);
  return bytes;
}

SourceState PatternMasks::State() const {
  SourceState state;
  for (const auto& [key, part] : parts_) {
    if (!part.predicted) continue;
    for (auto& [name, bytes] : part.predicted->State())
      state[PrefixOf(key.first, key.second) + name] = bytes;
  }
  return state;
}

}  // namespace equitile

#include "equitile/search/trials/trial_source.h"

#include "equitile/sparsity/files/pattern_masks.h"

namespace equitile {

TrialSource::TrialSource(const SourceContext& context, HeadTrials& trials,
                         std::span<const ColumnMasses> columns, const TrialSourceOptions& options,
                         ErrorTable& table)
    : context_(context),
      trials_(trials),
      columns_(columns),
      options_(options),
      table_(table),
      recorder_(trials, context.lanes, options.passes, context.head_dim, *context.comm,
                *context.pool),
      dense_(BlockMask::Dense(context.lanes, context.grid)),
      densities_(static_cast<size_t>(context.layers * context.lanes.heads)) {}

LaneMasks TrialSource::MaskFor(const SelfAttentionCall& call) {
  const int64_t step = call.step - options_.dense_steps;
  if (step < 0) return dense_;
  if (table_.Has(options_.first_prompt, step)) {
    recorder_.Record(call, columns_[static_cast<size_t>(call.layer)],
                     {.first_prompt = options_.first_prompt, .step = step}, table_);
  }
  if (options_.walks_by) return Chosen(step, call.layer);
  return options_.goes_on_with ? Given(call) : dense_;
}

LaneMasks TrialSource::Given(const SelfAttentionCall& call) {
  const PatternFile& file = *options_.goes_on_with;
  const auto [known, is_new] = given_.try_emplace({file.RangeAt(call.sigma), call.layer});
  if (is_new) known->second = PatternMasksAt(file, context_, call.sigma, call.layer);
  return known->second;
}

std::span<const double> TrialSource::DensitiesOf(int64_t layer, int64_t head) {
  const TrialPlace& place = trials_.place();
  std::vector<double>& densities =
      densities_[static_cast<size_t>(layer * context_.lanes.heads + head)];
  if (!densities.empty()) return densities;
  for (const HeadOption& option : place.options) {
    const HeadPattern pattern =
        PatternOf(option, columns_[static_cast<size_t>(layer)][static_cast<size_t>(head)],
                  place.grid, place.block_tokens);
    densities.push_back(PatternDensity(pattern, place.grid, place.block_tokens));
  }
  return densities;
}

LaneMasks TrialSource::Chosen(int64_t step, int64_t layer) {
  const TrialPlace& place = trials_.place();
  const int64_t prompts = table_.shape().prompts;
  std::vector<HeadPattern> heads;
  for (int64_t head = 0; head < context_.lanes.heads; ++head) {
    std::vector<double> errors;
    for (int64_t option = 0; option < std::ssize(place.options); ++option) {
      double sum = 0;
      for (int64_t prompt = 0; prompt < prompts; ++prompt)
        sum += table_.Mse({prompt, step, layer, head, option});
      errors.push_back(sum / static_cast<double>(prompts));
    }
    const size_t chosen = ChooseByLoss(errors, DensitiesOf(layer, head), *options_.walks_by);
    heads.push_back(PatternOf(place.options[chosen],
                              columns_[static_cast<size_t>(layer)][static_cast<size_t>(head)],
                              place.grid, place.block_tokens));
  }
  return MakePatternMasks(heads, context_.lanes.batch, place.grid, place.block_tokens);
}

}  // namespace equitile

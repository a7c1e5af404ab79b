#include "equitile/search/pattern_looks.h"

#include <utility>

#include "equitile/search/trials/trial_source.h"

namespace equitile {

PatternLooks::PatternLooks(const GenerateRequest& request, const SearchOptions& options,
                           CalibrationRun& run, ThreadPool& pool)
    : request_(request),
      options_(options),
      model_(request.transformer),
      run_(run),
      head_options_(OptionsFor(options)),
      trials_({.grid = run.token_grid(),
               .block_tokens = run.grid().block_tokens,
               .heads = model_.heads,
               .options = head_options_},
              pool),
      columns_(MakeColumnTable(model_.layers, model_.heads, run.grid().KvBlocks())),
      maps_(model_.layers, model_.heads, run.grid().KvBlocks()),
      table_(TableShape(run.Prompts(), run.SparseSteps())),
      second_table_(TableShape(SecondPrompts(run.Prompts()), run.SparseSteps())) {}

ErrorTableShape PatternLooks::TableShape(int64_t prompts, int64_t steps) const {
  return {.prompts = prompts,
          .steps = steps,
          .layers = model_.layers,
          .heads = model_.heads,
          .options = std::ssize(head_options_),
          .turns = TurnsFor(options_, prompts)};
}

void PatternLooks::Begin() {
  speed_.emplace(run_.MeasuredMachine(), SpeedPlace{.model = model_,
                                                    .grid = run_.token_grid(),
                                                    .block_tokens = run_.grid().block_tokens,
                                                    .text_rows = request_.config.text_rows,
                                                    .passes = request_.config.Passes(),
                                                    .ranks = options_.for_ranks});
  sigmas_ = run_.SparseSigmas();
}

void PatternLooks::AddTo(SourceState& parts) const {
  PutColumns(columns_, parts);
  maps_.AddTo(parts);
  table_.AddTo(parts);
  if (LooksTwice(options_)) second_table_.AddTo(parts, "second.");
}

void PatternLooks::Restore(const SourceState& parts) {
  TakeColumns(parts, columns_);
  maps_.Restore(parts);
  table_.Restore(parts);
  if (LooksTwice(options_)) second_table_.Restore(parts, "second.");
}

std::vector<CalibrationPass> PatternLooks::Passes(
    const std::function<void(int64_t prompt, const DenoiseStep& step)>& note) {
  CalibrationPass masses;
  masses.prompts = MassPrompts(options_, run_.Prompts());
  masses.source = [this](const SourceContext& context, int64_t) {
    return std::make_unique<ColumnMassSource>(context, options_.dense_steps, columns_, maps_);
  };
  masses.after_step = note;
  std::vector<CalibrationPass> passes = {masses, TrialsPass()};
  if (LooksTwice(options_)) passes.push_back(SecondPass());
  return passes;
}

// The paper's walk needs all prompts at once: what it chooses in a layer, all go on with.
CalibrationPass PatternLooks::TrialsPass() {
  CalibrationPass pass;
  pass.group = IsPaper(options_) ? run_.Prompts() : 1;
  pass.source = [this](const SourceContext& context, int64_t first) {
    return MakeTrials(context, first, table_, nullptr);
  };
  pass.records = RecordsIn(table_);
  pass.probe = [this](const SelfAttentionCall& call, const SourceContext& context) {
    Probe(call, context);
  };
  return pass;
}

// Errors of a layer grow with what the layers before have left out: tried again with these sparse,
// as the first look has chosen.
CalibrationPass PatternLooks::SecondPass() {
  CalibrationPass pass;
  pass.prompts = SecondPrompts(run_.Prompts());
  pass.is_dense = false;
  pass.source = [this](const SourceContext& context, int64_t first) {
    if (first_file_ == nullptr) {
      const Calibration calibration = First();
      first_file_ = std::make_shared<PatternFile>(
          ToPatternFile(calibration, ChoosePattern(calibration, options_.choice)));
    }
    return MakeTrials(context, first, second_table_, first_file_);
  };
  pass.records = RecordsIn(second_table_);
  pass.probe = [this](const SelfAttentionCall& call, const SourceContext& context) {
    Probe(call, context);
  };
  return pass;
}

std::function<bool(int64_t first, int64_t step)> PatternLooks::RecordsIn(
    const ErrorTable& table) const {
  return [this, &table](int64_t first, int64_t step) {
    return table.Has(first, step - options_.dense_steps);
  };
}

void PatternLooks::Probe(const SelfAttentionCall& call, const SourceContext& context) {
  ErrorTable unused(TableShape(1, 1));
  MakeTrials(context, 0, unused, nullptr)->MaskFor(call);
}

std::unique_ptr<MaskSource> PatternLooks::MakeTrials(
    const SourceContext& context, int64_t first, ErrorTable& table,
    std::shared_ptr<const PatternFile> goes_on_with) {
  TrialSourceOptions options{.dense_steps = options_.dense_steps,
                             .first_prompt = first,
                             .passes = request_.config.Passes(),
                             .walks_by = std::nullopt,
                             .goes_on_with = std::move(goes_on_with)};
  if (IsPaper(options_)) options.walks_by = options_.choice.loss;
  return std::make_unique<TrialSource>(context, trials_, columns_, options, table);
}

Calibration PatternLooks::CalibrationOf(const ErrorTable& table) const {
  return {.table = table,
          .options = head_options_,
          .columns = columns_,
          .grid = run_.token_grid(),
          .block_tokens = run_.grid().block_tokens,
          .dense_steps = options_.dense_steps,
          .sigmas = sigmas_,
          .speed = *speed_};
}

std::optional<Calibration> PatternLooks::Second() const {
  if (!LooksTwice(options_)) return std::nullopt;
  return CalibrationOf(second_table_);
}

}  // namespace equitile

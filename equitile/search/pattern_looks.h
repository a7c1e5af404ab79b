// What the passes of a pattern search see and record: where keys get their attention, then what
// every option of every head costs, in a first look and, with the layers before already sparse, in
// a second one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "equitile/search/choice/error_table.h"
#include "equitile/search/choice/pattern_choice.h"
#include "equitile/search/choice/speed_model.h"
#include "equitile/search/judge/calibration_run.h"
#include "equitile/search/search_options.h"
#include "equitile/search/trials/attention_maps.h"
#include "equitile/search/trials/column_masses.h"
#include "equitile/search/trials/head_trials.h"

namespace equitile {

class PatternLooks {
 public:
  // All must outlive it.
  PatternLooks(const GenerateRequest& request, const SearchOptions& options, CalibrationRun& run,
               ThreadPool& pool);
  PatternLooks(const PatternLooks&) = delete;
  PatternLooks& operator=(const PatternLooks&) = delete;

  // When the run has begun: what calibrations are judged by. The same on every rank.
  void Begin();
  const SpeedModel& Speed() const { return *speed_; }

  // note: on rank 0, after each step of the dense walk of a prompt.
  std::vector<CalibrationPass> Passes(
      const std::function<void(int64_t prompt, const DenoiseStep& step)>& note);

  Calibration First() const { return CalibrationOf(table_); }
  std::optional<Calibration> Second() const;  // nothing: it looks once
  const AttentionMaps& maps() const { return maps_; }

  // For checkpoints.
  void AddTo(SourceState& parts) const;
  void Restore(const SourceState& parts);

 private:
  ErrorTableShape TableShape(int64_t prompts, int64_t steps) const;
  Calibration CalibrationOf(const ErrorTable& table) const;
  CalibrationPass TrialsPass();
  CalibrationPass SecondPass();
  std::function<bool(int64_t first, int64_t step)> RecordsIn(const ErrorTable& table) const;
  void Probe(const SelfAttentionCall& call, const SourceContext& context);
  std::unique_ptr<MaskSource> MakeTrials(const SourceContext& context, int64_t first,
                                         ErrorTable& table,
                                         std::shared_ptr<const PatternFile> goes_on_with);

  const GenerateRequest& request_;
  const SearchOptions& options_;
  const WanConfig& model_;
  CalibrationRun& run_;
  std::vector<HeadOption> head_options_;
  HeadTrials trials_;
  ColumnTable columns_;
  AttentionMaps maps_;
  ErrorTable table_, second_table_;  // of the first and the second look
  std::optional<SpeedModel> speed_;
  std::vector<float> sigmas_;                // of the table's steps
  std::shared_ptr<PatternFile> first_file_;  // what the second look goes on with
};

}  // namespace equitile

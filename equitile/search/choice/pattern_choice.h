// From what calibration has found to what every head shall do: the objectives of a search, as
// functions of its table. Pure: the same table and machine give the same choice.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "equitile/io/records/pattern_file.h"
#include "equitile/search/choice/budget.h"
#include "equitile/search/choice/error_table.h"
#include "equitile/search/choice/head_options.h"
#include "equitile/search/choice/loss.h"
#include "equitile/search/choice/speed_model.h"

namespace equitile {

enum class Objective : uint8_t {
  kPaper,     // raw mean squares, along its own sparse trajectory
  kRelative,  // mean squares as parts of the layer's, along the dense one
  kBudget,    // one budget for the whole model
};
std::string_view ObjectiveName(Objective objective);

enum class StepRangesKind : uint8_t { kAuto, kOne, kEach };

enum class TargetKind : uint8_t { kDensity, kError, kSpeedup };
std::string_view TargetName(TargetKind target);  // as dials name it

struct ChoiceDials {
  Objective objective = Objective::kBudget;
  LossDials loss;
  TargetKind target = TargetKind::kError;  // of a budget
  double target_value = 0.02;
  StepRangesKind step_ranges = StepRangesKind::kAuto;
};

// [heads][kv blocks], in home order.
using ColumnMasses = std::vector<std::vector<uint64_t>>;

struct Calibration {
  const ErrorTable& table;  // its steps: those after the dense ones
  std::span<const HeadOption> options;
  std::span<const ColumnMasses> columns;  // [layers]
  TokenGrid grid;
  int64_t block_tokens = 64;
  int64_t dense_steps = 0;
  std::span<const float> sigmas;  // of the table's steps
  const SpeedModel& speed;
};

struct HeadChoice {
  size_t option = 0;                       // of the modes
  std::optional<size_t> observe, predict;  // of the masses
  double error = 0;                        // in the objective's unit
  double density = 1;
};

// What a budget has passed on its way: the whole model after one more head gave something up.
struct CurvePoint {
  double error = 0, density = 1;
  double seconds = 0;  // of self-attention in the table's steps
  double speedup = 1;  // of all steps
};

struct PatternChoice {
  std::vector<Range> ranges;                                // of the table's steps
  std::vector<std::vector<std::vector<HeadChoice>>> heads;  // [ranges][layers][heads]
  double density = 1;                                       // mean over steps, layers and heads
  double error = 0;            // the layers' relative squared error, mean over layers and steps
  double error_deviation = 0;  // standard deviation of that, from looking at some rows and calls
  double speedup = 1;
  bool reached = true;  // a budget's target
  // The part of heads whose mode would be the same if one step, or one prompt, had decided alone.
  double step_agreement = 1, prompt_agreement = 1;
  std::vector<CurvePoint> curve;  // of a budget: from dense to what was chosen
};

PatternChoice ChoosePattern(const Calibration& calibration, const ChoiceDials& dials);

HeadPattern PatternOfChoice(const Calibration& calibration, int64_t layer, int64_t head,
                            size_t option);

// Ranges and totals; who made it and from what is the caller's to add.
PatternFile ToPatternFile(const Calibration& calibration, const PatternChoice& choice);

}  // namespace equitile

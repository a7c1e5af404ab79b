#include "equitile/search/choice/pattern_choice.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "equitile/base/error.h"
#include "equitile/search/choice/step_ranges.h"

namespace equitile {
namespace {

Tail TailOf(const HeadOption& option) {
  const bool has_tail = option.kind != OptionKind::kMode || option.mode == HeadMode::kMean;
  return has_tail ? Tail::kMean : Tail::kNone;
}

// Means over parts of the table, and what follows from them.
class Chooser {
 public:
  Chooser(const Calibration& calibration, const ChoiceDials& dials)
      : c_(calibration), dials_(dials), shape_(calibration.table.shape()) {
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      for (int64_t head = 0; head < shape_.heads; ++head) {
        for (size_t option = 0; option < c_.options.size(); ++option) {
          const bool is_mode = c_.options[option].kind == OptionKind::kMode;
          mode_densities_.push_back(is_mode
                                        ? PatternDensity(PatternOfChoice(c_, layer, head, option),
                                                         c_.grid, c_.block_tokens)
                                        : -1);
        }
      }
    }
  }

  PatternChoice Choose() {
    PatternChoice choice = ChooseIn(Ranges());
    Summarise(choice);
    return choice;
  }

 private:
  Range AllPrompts() const { return {0, shape_.prompts}; }
  bool IsRaw() const { return dials_.objective == Objective::kPaper; }

  // Mean over prompts and steps: raw, or of what the layer's mean square is 1 of.
  double Error(Range prompts, Range steps, int64_t layer, int64_t head, size_t option) const {
    return MeanOfCalls(prompts, steps, [&](int64_t prompt, int64_t step) {
      const double mse = c_.table.Mse({prompt, step, layer, head, static_cast<int64_t>(option)});
      return IsRaw() ? mse : Part(mse, prompt, step, layer);
    });
  }

  // Of every step the mean over the prompts that were looked at in it, then over steps; 0 where
  // there are none. Steps count alike, whoever's turn they were, as in the error of the choice.
  template <typename Value>
  double MeanOfCalls(Range prompts, Range steps, Value&& value) const {
    double sum = 0;
    int64_t seen_steps = 0;
    for (int64_t step = steps.begin; step < steps.end; ++step) {
      double of_step = 0;
      int64_t calls = 0;
      for (int64_t prompt = prompts.begin; prompt < prompts.end; ++prompt) {
        if (!c_.table.Has(prompt, step)) continue;
        of_step += value(prompt, step);
        ++calls;
      }
      if (calls == 0) continue;
      sum += of_step / static_cast<double>(calls);
      ++seen_steps;
    }
    return seen_steps > 0 ? sum / static_cast<double>(seen_steps) : 0;
  }

  double Part(double mse, int64_t prompt, int64_t step, int64_t layer) const {
    const double square = c_.table.MeanSquare(prompt, step, layer);
    return square > 0 ? mse / square : 0;
  }

  double Density(Range steps, int64_t layer, int64_t head, size_t option) const {
    const double exact =
        mode_densities_[static_cast<size_t>(layer * shape_.heads + head) * c_.options.size() +
                        option];
    if (exact >= 0) return exact;
    return MeanOfCalls(AllPrompts(), steps, [&](int64_t prompt, int64_t step) {
      return c_.table.Density({prompt, step, layer, head, static_cast<int64_t>(option)});
    });
  }

  size_t ByLoss(Range prompts, Range steps, int64_t layer, int64_t head) const {
    std::vector<double> errors, densities;
    std::vector<size_t> index;
    for (size_t option = 0; option < c_.options.size(); ++option) {
      if (c_.options[option].kind != OptionKind::kMode) continue;
      index.push_back(option);
      errors.push_back(Error(prompts, steps, layer, head, option));
      densities.push_back(Density(steps, layer, head, option));
    }
    return index[ChooseByLoss(errors, densities, dials_.loss)];
  }

  double Seconds(double density, size_t option) const {
    return c_.speed.HeadSeconds(density, TailOf(c_.options[option]));
  }

  // The layers' relative squared error is a mean over all calls; of a head it is this part.
  double CallPart() const {
    return 1.0 / static_cast<double>(shape_.heads * shape_.layers * shape_.steps);
  }

  BudgetOption OptionOf(Range prompts, Range steps, int64_t layer, int64_t head,
                        size_t option) const {
    const auto count = static_cast<double>(steps.size());
    const double density = Density(steps, layer, head, option);
    return {.error = CallPart() * count * Error(prompts, steps, layer, head, option),
            .seconds = count * Seconds(density, option),
            .blocks = count * density};
  }

  // Options of this kind, full among them.
  std::vector<size_t> OptionsOf(OptionKind kind) const {
    std::vector<size_t> options = {0};
    for (size_t option = 1; option < c_.options.size(); ++option) {
      if (c_.options[option].kind == kind) options.push_back(option);
    }
    return options;
  }

  BudgetTarget Target() const {
    const auto heads = static_cast<double>(shape_.heads * shape_.layers * shape_.steps);
    switch (dials_.target) {
      case TargetKind::kDensity:
        return {BudgetTarget::Kind::kBlocks, dials_.target_value * heads};
      case TargetKind::kError:
        return {BudgetTarget::Kind::kError, dials_.target_value};
      case TargetKind::kSpeedup:
        return {BudgetTarget::Kind::kSeconds,
                c_.speed.SecondsFor(dials_.target_value, c_.dense_steps, shape_.steps) /
                    PassesAndRanks()};
    }
    EQ_CHECK(false);
  }

  // From the seconds of single heads to those of a layer on one rank.
  double PassesAndRanks() const {
    const double one = c_.speed.HeadSeconds(1, Tail::kNone) * static_cast<double>(shape_.heads);
    return c_.speed.DenseLayerSeconds() / one;
  }

  std::vector<BudgetItem> Items(std::span<const Range> ranges, std::span<const size_t> options) {
    std::vector<BudgetItem> items;
    for (size_t range = 0; range < ranges.size(); ++range) {
      for (int64_t layer = 0; layer < shape_.layers; ++layer) {
        for (int64_t head = 0; head < shape_.heads; ++head) {
          BudgetItem& item = items.emplace_back();
          item.layer = range * static_cast<size_t>(shape_.layers) + static_cast<size_t>(layer);
          for (size_t option : options)
            item.options.push_back(OptionOf(AllPrompts(), ranges[range], layer, head, option));
        }
      }
    }
    return items;
  }

  // On several ranks: what the layer's plan makes of it, in seconds of single heads.
  LayerSeconds SecondsOfLayers(std::span<const Range> ranges, std::span<const size_t> options) {
    if (c_.speed.ranks() == 1) return {};
    return [this, ranges, options](size_t number, std::span<const size_t> chosen) {
      const auto layer = static_cast<int64_t>(number % static_cast<size_t>(shape_.layers));
      std::vector<size_t> key = {static_cast<size_t>(layer)};
      std::vector<HeadPattern> heads;
      for (size_t head = 0; head < chosen.size(); ++head) {
        key.push_back(options[chosen[head]]);
        heads.push_back(PatternOfChoice(c_, layer, static_cast<int64_t>(head), key.back()));
      }
      const auto [known, is_new] = planned_.try_emplace(key, 0.0);
      if (is_new) known->second = c_.speed.LayerSeconds(heads) / PassesAndRanks();
      const Range steps = ranges[number / static_cast<size_t>(shape_.layers)];
      return known->second * static_cast<double>(steps.size());
    };
  }

  BudgetChoice Spend(std::span<const Range> ranges, OptionKind kind, bool on_ranks) {
    const std::vector<size_t> options = OptionsOf(kind);
    BudgetChoice choice = SpendBudget(Items(ranges, options), Target(),
                                      on_ranks ? SecondsOfLayers(ranges, options) : LayerSeconds());
    for (size_t& option : choice.options) option = options[option];
    return choice;
  }

  // What splitting steps is judged by.
  double CostOf(std::span<const Range> ranges) {
    if (dials_.objective == Objective::kBudget) {
      const BudgetPoint totals = Spend(ranges, OptionKind::kMode, false).totals();
      return dials_.target == TargetKind::kError ? totals.seconds : totals.error;
    }
    double loss = 0;
    ForEachHead(ranges, [&](const Range& range, int64_t layer, int64_t head) {
      const size_t option = ByLoss(AllPrompts(), range, layer, head);
      const double of_option = LossOf(Error(AllPrompts(), range, layer, head, option),
                                      Density(range, layer, head, option), dials_.loss);
      loss += static_cast<double>(range.size()) *
              (option == 0 ? std::max(dials_.loss.epsilon, dials_.loss.lambda) : of_option);
    });
    return loss;
  }

  template <typename Visit>
  void ForEachHead(std::span<const Range> ranges, Visit&& visit) const {
    for (const Range& range : ranges) {
      for (int64_t layer = 0; layer < shape_.layers; ++layer) {
        for (int64_t head = 0; head < shape_.heads; ++head) visit(range, layer, head);
      }
    }
  }

  std::vector<Range> Ranges() {
    switch (dials_.step_ranges) {
      case StepRangesKind::kOne:
        return {{0, shape_.steps}};
      case StepRangesKind::kEach:
        return EachStep(shape_.steps);
      case StepRangesKind::kAuto:
        return SplitSteps(shape_.steps,
                          [this](std::span<const Range> ranges) { return CostOf(ranges); });
    }
    EQ_CHECK(false);
  }

  PatternChoice ChooseIn(std::vector<Range> ranges) {
    PatternChoice choice;
    std::vector<size_t> modes, observe, predict;
    if (dials_.objective == Objective::kBudget) {
      BudgetChoice spent = Spend(ranges, OptionKind::kMode, true);
      price_ = spent.price;
      modes = std::move(spent.options);
      choice.reached = spent.reached;
      for (const BudgetPoint& point : spent.curve) choice.curve.push_back(OnCurve(point));
      observe = Spend(ranges, OptionKind::kObserve, false).options;
      predict = Spend(ranges, OptionKind::kPredict, false).options;
    } else {
      ForEachHead(ranges, [&](const Range& range, int64_t layer, int64_t head) {
        modes.push_back(ByLoss(AllPrompts(), range, layer, head));
      });
    }
    size_t item = 0;
    for (const Range& range : ranges) {
      auto& layers = choice.heads.emplace_back(static_cast<size_t>(shape_.layers));
      for (int64_t layer = 0; layer < shape_.layers; ++layer) {
        for (int64_t head = 0; head < shape_.heads; ++head, ++item) {
          HeadChoice& of_head = layers[static_cast<size_t>(layer)].emplace_back();
          of_head.option = modes[item];
          of_head.error = Error(AllPrompts(), range, layer, head, modes[item]);
          of_head.density = Density(range, layer, head, modes[item]);
          if (!observe.empty()) of_head.observe = observe[item];
          if (!predict.empty()) of_head.predict = predict[item];
        }
      }
    }
    choice.ranges = std::move(ranges);
    return choice;
  }

  CurvePoint OnCurve(const BudgetPoint& point) const {
    const double seconds = point.seconds * PassesAndRanks();
    return {.error = point.error,
            .density = point.blocks * CallPart(),
            .seconds = seconds,
            .speedup = c_.speed.Speedup(c_.dense_steps, shape_.steps, seconds)};
  }

  // The option that this part of the calibration would have chosen, at the price of the whole.
  size_t Alone(Range prompts, Range steps, int64_t layer, int64_t head) const {
    if (dials_.objective != Objective::kBudget) return ByLoss(prompts, steps, layer, head);
    size_t best = 0;
    double least = 0;
    for (size_t option : OptionsOf(OptionKind::kMode)) {
      const BudgetOption o = OptionOf(prompts, steps, layer, head, option);
      const double cost = o.error + price_ * o.seconds;
      if (option == 0 || cost < least) {
        best = option;
        least = cost;
      }
    }
    return best;
  }

  double Agreement(const PatternChoice& choice, bool by_step) const {
    int64_t same = 0, all = 0;
    for (size_t r = 0; r < choice.ranges.size(); ++r) {
      const Range range = choice.ranges[r];
      for (int64_t layer = 0; layer < shape_.layers; ++layer) {
        for (int64_t head = 0; head < shape_.heads; ++head) {
          const size_t whole =
              choice.heads[r][static_cast<size_t>(layer)][static_cast<size_t>(head)].option;
          const Range parts = by_step ? range : AllPrompts();
          for (int64_t part = parts.begin; part < parts.end; ++part) {
            const Range one = {part, part + 1};
            if (!by_step && !IsSeen(part, range)) continue;
            const size_t alone =
                by_step ? Alone(AllPrompts(), one, layer, head) : Alone(one, range, layer, head);
            same += c_.options[alone].mode == c_.options[whole].mode ? 1 : 0;
            ++all;
          }
        }
      }
    }
    return static_cast<double>(same) / static_cast<double>(all);
  }

  bool IsSeen(int64_t prompt, Range steps) const {
    for (int64_t step = steps.begin; step < steps.end; ++step) {
      if (c_.table.Has(prompt, step)) return true;
    }
    return false;
  }

  void Summarise(PatternChoice& choice) {
    double density = 0, seconds = 0;
    StepErrors errors(shape_);
    for (size_t r = 0; r < choice.ranges.size(); ++r) {
      const auto steps = static_cast<double>(choice.ranges[r].size());
      for (int64_t layer = 0; layer < shape_.layers; ++layer) {
        std::vector<HeadPattern> heads;
        for (int64_t head = 0; head < shape_.heads; ++head) {
          const HeadChoice& of_head =
              choice.heads[r][static_cast<size_t>(layer)][static_cast<size_t>(head)];
          heads.push_back(PatternOfChoice(c_, layer, head, of_head.option));
          density += steps * of_head.density;
          AddError(choice.ranges[r], layer, head, of_head.option, errors);
        }
        seconds += steps * c_.speed.LayerSeconds(heads);
      }
    }
    choice.density = density * CallPart();
    SumUp(errors, choice);
    choice.speedup = c_.speed.Speedup(c_.dense_steps, shape_.steps, seconds);
    choice.step_agreement = Agreement(choice, true);
    choice.prompt_agreement = Agreement(choice, false);
  }

  // Relative errors, whatever the objective, of all layers and heads together.
  struct StepErrors {
    explicit StepErrors(const ErrorTableShape& shape)
        : of_prompts(static_cast<size_t>(shape.steps)), row_variance(of_prompts.size()) {
      for (auto& step : of_prompts) step.resize(static_cast<size_t>(shape.prompts));
    }
    std::vector<std::vector<double>> of_prompts;  // [steps][prompts]
    std::vector<double> row_variance;             // [steps] of the sum over prompts
  };

  void AddError(Range steps, int64_t layer, int64_t head, size_t option, StepErrors& errors) const {
    for (int64_t step = steps.begin; step < steps.end; ++step) {
      const auto s = static_cast<size_t>(step);
      for (int64_t prompt = 0; prompt < shape_.prompts; ++prompt) {
        if (!c_.table.Has(prompt, step)) continue;
        errors.of_prompts[s][static_cast<size_t>(prompt)] +=
            Part(c_.table.Mse({prompt, step, layer, head, static_cast<int64_t>(option)}), prompt,
                 step, layer);
      }
      errors.row_variance[s] +=
          c_.table.Variance({0, step, layer, head, static_cast<int64_t>(option)});
    }
  }

  // What is not looked at makes the mean uncertain twice: rows within calls, and the prompts whose
  // turn a step is not.
  void SumUp(const StepErrors& errors, PatternChoice& choice) const {
    double error = 0, variance = 0;
    for (int64_t step = 0; step < shape_.steps; ++step) {
      const auto s = static_cast<size_t>(step);
      std::vector<double> seen;
      for (int64_t prompt = 0; prompt < shape_.prompts; ++prompt) {
        if (c_.table.Has(prompt, step))
          seen.push_back(errors.of_prompts[s][static_cast<size_t>(prompt)]);
      }
      const auto count = static_cast<double>(seen.size());
      const double mean = std::accumulate(seen.begin(), seen.end(), 0.0) / count;
      error += mean;
      variance += errors.row_variance[s] / (count * count);
      if (seen.size() < 2) continue;
      double squares = 0;
      for (double value : seen) squares += (value - mean) * (value - mean);
      variance += squares / (count - 1) / count * (1 - count / static_cast<double>(shape_.prompts));
    }
    choice.error = error * CallPart();
    choice.error_deviation = std::sqrt(variance) * CallPart();
  }

  const Calibration& c_;
  const ChoiceDials& dials_;
  const ErrorTableShape shape_;
  std::vector<double> mode_densities_;  // [layers][heads][options]; -1 for masses
  double price_ = 0;
  std::map<std::vector<size_t>, double> planned_;  // layer and its options -> seconds
};

}  // namespace

std::string_view ObjectiveName(Objective objective) {
  constexpr std::string_view kNames[] = {"paper", "relative", "budget"};
  return kNames[static_cast<size_t>(objective)];
}

std::string_view TargetName(TargetKind target) {
  constexpr std::string_view kNames[] = {"density", "error", "speedup"};
  return kNames[static_cast<size_t>(target)];
}

HeadPattern PatternOfChoice(const Calibration& calibration, int64_t layer, int64_t head,
                            size_t option) {
  return PatternOf(calibration.options[option],
                   calibration.columns[static_cast<size_t>(layer)][static_cast<size_t>(head)],
                   calibration.grid, calibration.block_tokens);
}

PatternChoice ChoosePattern(const Calibration& calibration, const ChoiceDials& dials) {
  return Chooser(calibration, dials).Choose();
}

PatternFile ToPatternFile(const Calibration& calibration, const PatternChoice& choice) {
  PatternFile file;
  file.grid = calibration.grid;
  file.block_tokens = calibration.block_tokens;
  file.density = choice.density;
  file.predicted_speedup = choice.speedup;
  const std::vector<SigmaRange> sigmas = SigmaRanges(choice.ranges, calibration.sigmas);
  for (size_t r = 0; r < choice.ranges.size(); ++r) {
    PatternRange& range = file.ranges.emplace_back();
    range.low = sigmas[r].low;
    range.high = sigmas[r].high;
    for (size_t layer = 0; layer < choice.heads[r].size(); ++layer) {
      auto& heads = range.layers.emplace_back();
      for (size_t head = 0; head < choice.heads[r][layer].size(); ++head) {
        const HeadChoice& of_head = choice.heads[r][layer][head];
        const auto mass = [&](std::optional<size_t> option) -> std::optional<double> {
          if (!option) return std::nullopt;
          const HeadOption& chosen = calibration.options[*option];
          return chosen.IsFull() ? 1.0 : chosen.size;
        };
        heads.push_back({.pattern = PatternOfChoice(calibration, static_cast<int64_t>(layer),
                                                    static_cast<int64_t>(head), of_head.option),
                         .density = of_head.density,
                         .error = of_head.error,
                         .predict_mass = mass(of_head.predict),
                         .observe_mass = mass(of_head.observe)});
      }
    }
  }
  return file;
}

}  // namespace equitile

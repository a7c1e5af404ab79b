#include "equitile/search/pattern_origin.h"

#include <fmt/format.h>

#include <charconv>
#include <string>

#include "equitile/search/trials/row_sample.h"

namespace equitile {
namespace {

// Of all products of all steps, dense ones among them.
double FlopReduction(const PatternOrigin& origin, const PatternFile& file) {
  const GenerationConfig& config = origin.request.config;
  const WanFlops dense =
      CountWanFlops(origin.request.transformer, origin.grid.q_tokens, config.text_rows);
  const double sparse_part = static_cast<double>(config.steps - origin.options.dense_steps) /
                             static_cast<double>(config.steps);
  const double saved = sparse_part * (1 - file.density) * dense.self_attention;
  return dense.Total() / (dense.Total() - saved);
}

}  // namespace

void FillHeader(const PatternOrigin& origin, const PatternChoice& choice, PatternFile& file) {
  const auto& [request, agreed, options, grid, machine] = origin;
  const std::string fingerprint = agreed.Text("model_fingerprint");
  std::from_chars(fingerprint.data(), fingerprint.data() + fingerprint.size(), file.model, 16);
  for (const GenerateTask& task : request.tasks) {
    file.prompts.push_back(task.prompt);
    file.seeds.push_back(static_cast<int64_t>(task.seed));
  }
  const ChoiceDials& dials = options.choice;
  file.objective = ObjectiveName(dials.objective);
  const int64_t rows = grid.QBlocks();
  file.dials = {
      {"steps", static_cast<double>(request.config.steps)},
      {"dense_steps", static_cast<double>(options.dense_steps)},
      {"flow_shift", request.config.flow_shift},
      {"for_ranks", options.for_ranks},
      {"rows", static_cast<double>(SampledRows(rows)) / static_cast<double>(rows)},
      {"turns", static_cast<double>(TurnsFor(options, std::ssize(request.tasks)))},
      {"kernel_gflops", machine.kernel.front().gflops},
      {"kernel_row_seconds", machine.kernel.front().row_seconds},
      {"peak_gflops", machine.peak_gflops},
      {"error", choice.error},
      {"error_deviation", choice.error_deviation},
      {"flop_reduction", FlopReduction(origin, file)},
      {"step_agreement", choice.step_agreement},
      {"prompt_agreement", choice.prompt_agreement}};
  if (dials.objective == Objective::kBudget) {
    file.dials[fmt::format("target_{}", TargetName(dials.target))] = dials.target_value;
  } else {
    file.dials["lambda"] = dials.loss.lambda;
    file.dials["epsilon"] = dials.loss.epsilon;
  }
  if (IsPaper(options)) file.dials["mode_density"] = options.paper_density;
}

}  // namespace equitile

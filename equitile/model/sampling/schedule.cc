#include "equitile/model/sampling/schedule.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "equitile/base/error.h"
#include "equitile/io/records/config_file.h"

namespace equitile {
namespace {

constexpr double kTrainTimesteps = 1000;

double Shifted(double g, double shift) { return shift * g / (1 + (shift - 1) * g); }

// As diffusers does it, in double, rounded once: float arithmetic would be off in the last bit.
Schedule UniPcSchedule(bool variant_b, int64_t steps, double shift) {
  Schedule schedule;
  const double n = static_cast<double>(steps);
  const double slope = (1 / kTrainTimesteps - 1) / n;
  for (int64_t k = 0; k < steps; ++k) {
    double g = 1 + static_cast<double>(k) * slope;
    if (variant_b) {
      const double a = k == 0 ? 1 / kTrainTimesteps : 1 + (n - static_cast<double>(k)) * slope;
      g = 1 - a;
    }
    double sigma = Shifted(g, shift);
    // At sigma = 1 the log of alpha would be infinite.
    if (!variant_b && k == 0 && std::abs(sigma - 1) < 1e-6) sigma -= 1e-6;
    schedule.sigmas.push_back(static_cast<float>(sigma));
    schedule.timesteps.push_back(static_cast<float>(std::trunc(sigma * kTrainTimesteps)));
  }
  schedule.sigmas.push_back(0.0f);
  return schedule;
}

// The low end is shifted twice, as in diffusers.
Schedule EulerSchedule(int64_t steps, double shift) {
  const auto s = static_cast<float>(shift);
  const float low = 1.0f / static_cast<float>(kTrainTimesteps);
  const double begin = kTrainTimesteps;
  const double end = static_cast<double>(s * low / (1 + (s - 1) * low)) * kTrainTimesteps;
  const double step = steps > 1 ? (end - begin) / static_cast<double>(steps - 1) : 0;
  Schedule schedule;
  for (int64_t k = 0; k < steps; ++k) {
    const bool last = k > 0 && k == steps - 1;
    const double tau = last ? end : begin + static_cast<double>(k) * step;
    const auto sigma = static_cast<float>(Shifted(tau / kTrainTimesteps, shift));
    schedule.sigmas.push_back(sigma);
    schedule.timesteps.push_back(sigma * static_cast<float>(kTrainTimesteps));
  }
  schedule.sigmas.push_back(0.0f);
  return schedule;
}

void RequireText(const ConfigFile& config, const char* key, const std::string& missing,
                 const std::string& only) {
  const std::string found = config.Text(key, missing);
  if (found == only) return;
  if (!config.Has(key)) {
    throw InputError("[model] {}: '{}' is missing, which means '{}'; only '{}' is supported",
                     config.name(), key, missing, only);
  }
  config.Fail(key, fmt::format("only '{}' is supported", only));
}

void RequireBool(const ConfigFile& config, const char* key, bool missing, bool only) {
  if (config.Bool(key, missing) == only) return;
  if (!config.Has(key)) {
    throw InputError("[model] {}: '{}' is missing, which means {}; only {} is supported",
                     config.name(), key, missing, only);
  }
  config.Fail(key, fmt::format("only {} is supported", only));
}

void RequireInteger(const ConfigFile& config, const char* key, int64_t only) {
  if (config.Integer(key, only, INT32_MIN) != only) {
    config.Fail(key, fmt::format("only {} is supported", only));
  }
}

// Switches of both classes.
void RequireCommon(const ConfigFile& config) {
  RequireInteger(config, "num_train_timesteps", 1000);
  for (const char* key : {"use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas",
                          "use_dynamic_shifting", "shift_terminal"}) {
    config.CheckUnused(key);
  }
}

SchedulerConfig UniPcConfig(const ConfigFile& config) {
  RequireCommon(config);
  RequireInteger(config, "solver_order", 2);
  RequireInteger(config, "steps_offset", 0);
  RequireText(config, "prediction_type", "epsilon", "flow_prediction");
  RequireText(config, "solver_type", "bh2", "bh2");
  RequireText(config, "final_sigmas_type", "zero", "zero");
  RequireText(config, "timestep_spacing", "linspace", "linspace");
  RequireText(config, "time_shift_type", "exponential", "exponential");
  RequireBool(config, "predict_x0", true, true);
  RequireBool(config, "lower_order_final", true, true);
  RequireBool(config, "use_flow_sigmas", false, true);
  for (const char* key : {"thresholding", "disable_corrector", "solver_p", "sigma_min", "sigma_max",
                          "rescale_betas_zero_snr", "trained_betas"}) {
    config.CheckUnused(key);
  }
  return {.kind = SamplerKind::kUniPc, .shift = config.Number("flow_shift", 1.0, 1e-3, 1e3)};
}

SchedulerConfig EulerConfig(const ConfigFile& config) {
  RequireCommon(config);
  for (const char* key : {"invert_sigmas", "stochastic_sampling"}) config.CheckUnused(key);
  return {.kind = SamplerKind::kEuler, .shift = config.Number("shift", 1.0, 1e-3, 1e3)};
}

}  // namespace

std::string_view SamplerKindName(SamplerKind kind) {
  switch (kind) {
    case SamplerKind::kUniPcB:
      return "unipc-b";
    case SamplerKind::kEuler:
      return "euler";
    default:
      return "unipc";
  }
}

SamplerKind ParseSamplerKind(std::string_view name) {
  for (SamplerKind kind : {SamplerKind::kUniPc, SamplerKind::kUniPcB, SamplerKind::kEuler}) {
    if (name == SamplerKindName(kind)) return kind;
  }
  throw InputError("[model] sampler '{}': unknown; use unipc, unipc-b or euler", name);
}

Schedule MakeSchedule(SamplerKind kind, int64_t steps, double shift) {
  EQ_CHECK(steps >= 1 && shift > 0, "{} steps, shift {}", steps, shift);
  Schedule schedule = kind == SamplerKind::kEuler
                          ? EulerSchedule(steps, shift)
                          : UniPcSchedule(kind == SamplerKind::kUniPcB, steps, shift);
  const auto& sigmas = schedule.sigmas;
  if (std::adjacent_find(sigmas.begin(), sigmas.end(), std::less_equal<>()) != sigmas.end()) {
    throw InputError(
        "[model] {} steps with a flow shift of {}: neighbouring steps have the same noise; use "
        "fewer "
        "steps or a smaller shift",
        steps, shift);
  }
  return schedule;
}

SchedulerConfig ReadSchedulerConfig(const std::filesystem::path& path) {
  const ConfigFile config(path);
  const std::string name = config.Text("_class_name", "UniPCMultistepScheduler");
  if (name == "UniPCMultistepScheduler") return UniPcConfig(config);
  if (name == "FlowMatchEulerDiscreteScheduler") return EulerConfig(config);
  config.Fail("_class_name",
              "unknown; UniPCMultistepScheduler and FlowMatchEulerDiscreteScheduler are supported");
}

}  // namespace equitile

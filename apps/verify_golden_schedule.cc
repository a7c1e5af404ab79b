// Golden schedules, sampler traces and noise.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>

#include "apps/verify_golden.h"
#include "equitile/base/error.h"
#include "equitile/io/safetensors.h"
#include "equitile/model/noise.h"
#include "equitile/model/sampler.h"

namespace equitile {
namespace {

constexpr GoldenTolerance kTraces{.max = 4e-6, .absolute = true};
constexpr GoldenTolerance kNoise{.max = 1e-6, .absolute = true};

// The number after `key` in `name`, whatever follows it.
template <typename Number>
std::optional<Number> NumberAfter(std::string_view name, std::string_view key) {
  const size_t at = name.find(key);
  if (at == name.npos) return std::nullopt;
  std::string_view rest = name.substr(at + key.size());
  // "shift3.steps4": the dot is not of the number.
  if (const size_t next = rest.find(".s"); next != rest.npos) rest = rest.substr(0, next);
  Number value{};
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  return error == std::errc{} ? std::optional(value) : std::nullopt;
}

// "unipc_a.shift3.steps20.sigmas"
struct Case {
  SamplerKind kind;
  int64_t steps;
  double shift;
  std::string prefix, what;
};

std::optional<Case> CaseOf(const std::string& name) {
  std::optional<SamplerKind> kind;
  if (name.starts_with("unipc_a.")) kind = SamplerKind::kUniPc;
  if (name.starts_with("unipc_b.")) kind = SamplerKind::kUniPcB;
  if (name.starts_with("euler.")) kind = SamplerKind::kEuler;
  const auto shift = NumberAfter<double>(name, ".shift");
  const auto steps = NumberAfter<int64_t>(name, ".steps");
  const size_t dot = name.rfind('.');
  if (!kind || !shift || !steps || *shift <= 0 || *steps < 1 || *steps > 100000)
    return std::nullopt;
  return Case{*kind, *steps, *shift, name.substr(0, dot + 1), name.substr(dot + 1)};
}

// The model of the traces: v = 0.7 x + sin(3 x) sigma.
std::vector<float> TraceVelocity(std::span<const float> x, float sigma) {
  std::vector<float> v;
  for (const float value : x) v.push_back(0.7f * value + std::sin(3.0f * value) * sigma);
  return v;
}

void VerifyTrace(const std::string& file, const TensorFiles& tensors, const Case& c,
                 GoldenReport& report) {
  const StoredTensor& trace = tensors[c.prefix + "trace_x"];
  const std::vector<float> golden = trace.Floats();
  const size_t width = golden.size() / static_cast<size_t>(c.steps + 1);
  Sampler sampler(c.kind, c.steps, c.shift);
  std::vector<float> x(golden.begin(), golden.begin() + static_cast<ptrdiff_t>(width));
  std::vector<float> xs = x, velocities, estimates, corrected;
  const auto append = [](std::vector<float>& to, std::span<const float> row) {
    to.insert(to.end(), row.begin(), row.end());
  };
  while (!sampler.done()) {
    const auto sigma = sampler.schedule().sigmas[static_cast<size_t>(sampler.step())];
    const std::vector<float> v = TraceVelocity(x, sigma);
    sampler.Step(v, x);
    append(velocities, v);
    append(xs, x);
    append(estimates, sampler.Estimate());
    append(corrected, sampler.Corrected());
  }
  report.Near(file, trace, xs, kTraces);
  if (const auto* v = tensors.Find(c.prefix + "trace_v"))
    report.Near(file, *v, velocities, kTraces);
  if (c.kind == SamplerKind::kEuler) return;
  if (const auto* m = tensors.Find(c.prefix + "trace_m")) report.Near(file, *m, estimates, kTraces);
  if (const auto* y = tensors.Find(c.prefix + "trace_y")) report.Near(file, *y, corrected, kTraces);
}

}  // namespace

void VerifyGoldenSchedules(const GoldenRun& run) {
  GoldenReport& report = run.report;
  const std::string file = "scheduler.safetensors";
  if (run.golden.Files(file, "").empty()) return report.Fail(file, "", "missing");
  try {
    ReadSchedulerConfig(run.golden.checkpoint.Part("scheduler/scheduler_config.json"));
  } catch (const InputError& error) {  // traces would be off too, without a reason
    report.Fail("scheduler_config.json", "", error.what());
  }
  const TensorFiles tensors = TensorFiles::OpenFile(run.golden.root / file);
  for (const StoredTensor& tensor : tensors.tensors()) {
    const auto c = CaseOf(tensor.name);
    if (!c) {
      report.Skip(file, tensor.name);
    } else if (c->what == "sigmas") {
      report.Equal(file, tensor, MakeSchedule(c->kind, c->steps, c->shift).sigmas);
    } else if (c->what == "timesteps") {
      report.Equal(file, tensor, MakeSchedule(c->kind, c->steps, c->shift).timesteps);
    } else if (c->what == "trace_x") {
      VerifyTrace(file, tensors, *c, report);
    } else if (!c->what.starts_with("trace_")) {
      report.Skip(file, tensor.name);
    }
  }
}

void VerifyGoldenNoise(const GoldenRun& run) {
  GoldenReport& report = run.report;
  const std::string file = "noise.safetensors";
  if (run.golden.Files(file, "").empty()) return report.Fail(file, "", "missing");
  const TensorFiles tensors = TensorFiles::OpenFile(run.golden.root / file);
  for (const StoredTensor& tensor : tensors.tensors()) {  // "seed42.shape1x16x3"
    const auto seed = NumberAfter<uint64_t>(tensor.name, "seed");
    if (!seed) {
      report.Skip(file, tensor.name);
      continue;
    }
    std::vector<float> noise(static_cast<size_t>(tensor.Elements()));
    FillNoise(NoiseKind::kTorch, *seed, noise);
    report.Near(file, tensor, noise, kNoise);
  }
}

}  // namespace equitile

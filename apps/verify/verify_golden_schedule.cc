// Golden schedules, sampler traces and noise.
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include "apps/verify/golden_file.h"
#include "apps/verify/verify_golden.h"
#include "equitile/base/error.h"
#include "equitile/model/sampling/noise.h"
#include "equitile/model/sampling/sampler.h"

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

// "unipc_a.shift3.steps20."
struct Case {
  SamplerKind kind;
  int64_t steps;
  double shift;
};

std::optional<Case> CaseOf(const std::string& prefix) {
  std::optional<SamplerKind> kind;
  if (prefix.starts_with("unipc_a.")) kind = SamplerKind::kUniPc;
  if (prefix.starts_with("unipc_b.")) kind = SamplerKind::kUniPcB;
  if (prefix.starts_with("euler.")) kind = SamplerKind::kEuler;
  const auto shift = NumberAfter<double>(prefix, ".shift");
  const auto steps = NumberAfter<int64_t>(prefix, ".steps");
  if (!kind || !shift || !steps || *shift <= 0 || *steps < 1 || *steps > 100000)
    return std::nullopt;
  return Case{*kind, *steps, *shift};
}

// The model of the traces: v = 0.7 x + sin(3 x) sigma.
std::vector<float> TraceVelocity(std::span<const float> x, float sigma) {
  std::vector<float> v;
  for (const float value : x) v.push_back(0.7f * value + std::sin(3.0f * value) * sigma);
  return v;
}

void VerifyTrace(GoldenFile& golden, const std::string& prefix, const Case& c) {
  const std::vector<float> trace = golden.Input(prefix + "trace_x").Floats();
  const size_t width = trace.size() / static_cast<size_t>(c.steps + 1);
  Sampler sampler(c.kind, c.steps, c.shift);
  std::vector<float> x(trace.begin(), trace.begin() + static_cast<ptrdiff_t>(width));
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
  golden.Near(prefix + "trace_x", xs, kTraces);
  golden.Near(prefix + "trace_v", velocities, kTraces);
  if (c.kind == SamplerKind::kEuler) return;
  golden.Near(prefix + "trace_m", estimates, kTraces);
  golden.Near(prefix + "trace_y", corrected, kTraces);
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
  GoldenFile golden(run.golden.root, file, report);
  std::set<std::string> prefixes, traced;
  for (const StoredTensor& tensor : golden.tensors().tensors()) {
    const size_t end = tensor.name.rfind('.') + 1;
    prefixes.insert(tensor.name.substr(0, end));
    if (tensor.name.compare(end, 6, "trace_") == 0) traced.insert(tensor.name.substr(0, end));
  }
  for (const std::string& prefix : prefixes) {
    const auto c = CaseOf(prefix);
    if (!c) continue;
    const Schedule schedule = MakeSchedule(c->kind, c->steps, c->shift);
    golden.Equal(prefix + "sigmas", schedule.sigmas);
    golden.Equal(prefix + "timesteps", schedule.timesteps);
    if (traced.contains(prefix)) VerifyTrace(golden, prefix, *c);
  }
  golden.Finish();
}

void VerifyGoldenNoise(const GoldenRun& run) {
  GoldenReport& report = run.report;
  const std::string file = "noise.safetensors";
  if (run.golden.Files(file, "").empty()) return report.Fail(file, "", "missing");
  GoldenFile golden(run.golden.root, file, report);
  for (const StoredTensor& tensor : golden.tensors().tensors()) {  // "seed42.shape1x16x3"
    const auto seed = NumberAfter<uint64_t>(tensor.name, "seed");
    if (!seed) continue;
    std::vector<float> noise(static_cast<size_t>(tensor.Elements()));
    FillNoise(NoiseKind::kTorch, *seed, noise);
    golden.Near(tensor.name, noise, kNoise);
  }
  golden.Finish();
}

}  // namespace equitile

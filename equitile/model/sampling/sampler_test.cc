#include "equitile/model/sampling/sampler.h"

#include <gtest/gtest.h>

#include <cmath>

#include "equitile/base/error.h"
#include "equitile/io/arrays/safetensors.h"
#include "tests/in_repository.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

const TensorFiles& Golden() {
  static const TensorFiles golden =
      TensorFiles::OpenFile(InRepository("tests/golden/scheduler.safetensors"));
  return golden;
}

struct Case {
  SamplerKind kind;
  int64_t steps;
  double shift;
};

// "unipc_a.shift3.steps20.sigmas"
Case CaseOf(const std::string& name) {
  Case c{};
  c.kind = name.starts_with("unipc_a")   ? SamplerKind::kUniPc
           : name.starts_with("unipc_b") ? SamplerKind::kUniPcB
                                         : SamplerKind::kEuler;
  c.shift = std::stod(name.substr(name.find("shift") + 5));
  c.steps = std::stoll(name.substr(name.find("steps") + 5));
  return c;
}

TEST(Schedule, EqualsDiffusersBitForBit) {
  int cases = 0;
  for (const StoredTensor& tensor : Golden().tensors()) {
    const Case c = CaseOf(tensor.name);
    const Schedule schedule = MakeSchedule(c.kind, c.steps, c.shift);
    if (tensor.name.ends_with(".sigmas")) {
      EXPECT_EQ(schedule.sigmas, tensor.Floats()) << tensor.name;
    } else if (tensor.name.ends_with(".timesteps") && tensor.type == StoredType::kI64) {
      const std::vector<int64_t> expected = tensor.Integers();
      EXPECT_EQ(schedule.timesteps, std::vector<float>(expected.begin(), expected.end()))
          << tensor.name;
    } else if (tensor.name.ends_with(".timesteps")) {
      EXPECT_EQ(schedule.timesteps, tensor.Floats()) << tensor.name;
    } else {
      continue;
    }
    ++cases;
  }
  EXPECT_GT(cases, 200);
}

// The model of the traces: v = 0.7 x + sin(3 x) sigma.
std::vector<float> Velocity(std::span<const float> x, float sigma) {
  std::vector<float> v;
  for (float value : x) v.push_back(0.7f * value + std::sin(3.0f * value) * sigma);
  return v;
}

void ExpectNear(std::span<const float> found, std::span<const float> expected,
                const std::string& what) {
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 4e-6) << what;
}

TEST(Schedule, RefusesStepsOfTheSameNoise) {
  EXPECT_THROW(MakeSchedule(SamplerKind::kUniPc, 1000, 1000), InputError);
  EXPECT_THROW(MakeSchedule(SamplerKind::kUniPc, 100000, 1000), InputError);
  for (SamplerKind kind : {SamplerKind::kUniPc, SamplerKind::kUniPcB, SamplerKind::kEuler}) {
    for (double shift : {1e-3, 1.0, 12.0, 900.0}) EXPECT_NO_THROW(MakeSchedule(kind, 1000, shift));
    EXPECT_NO_THROW(MakeSchedule(kind, 1, 1000));
  }
}

TEST(Sampler, FollowsTheTracesOfDiffusers) {
  int traces = 0;
  for (const StoredTensor& tensor : Golden().tensors()) {
    if (!tensor.name.ends_with("trace_x")) continue;
    const Case c = CaseOf(tensor.name);
    const std::string prefix = tensor.name.substr(0, tensor.name.size() - 1);
    const std::vector<float> all = tensor.Floats();
    const auto row = [](std::span<const float> rows, int64_t i) {
      return rows.subspan(static_cast<size_t>(i) * 16, 16);
    };
    Sampler sampler(c.kind, c.steps, c.shift);
    std::vector<float> x(all.begin(), all.begin() + 16);
    for (int64_t i = 0; i < c.steps; ++i) {
      sampler.Step(Velocity(x, sampler.schedule().sigmas[static_cast<size_t>(i)]), x);
      ExpectNear(x, row(all, i + 1), prefix + "x");
      if (c.kind == SamplerKind::kEuler) continue;
      ExpectNear(sampler.Estimate(), row(Golden()[prefix + "m"].Floats(), i), prefix + "m");
      ExpectNear(sampler.Corrected(), row(Golden()[prefix + "y"].Floats(), i), prefix + "y");
    }
    EXPECT_TRUE(sampler.done());
    ++traces;
  }
  EXPECT_GE(traces, 40);
}

TEST(Sampler, LastStepOfUniPcIsItsEstimate) {
  Sampler sampler(SamplerKind::kUniPc, 7, 5);
  std::vector<float> x = {0.3f, -1.5f, 2.0f};
  while (!sampler.done()) {
    sampler.Step(Velocity(x, sampler.schedule().sigmas[static_cast<size_t>(sampler.step())]), x);
  }
  EXPECT_TRUE(std::equal(x.begin(), x.end(), sampler.Estimate().begin()));
}

TEST(Sampler, GoesOnWithTheSameBitsFromAnyStep) {
  for (SamplerKind kind : {SamplerKind::kUniPc, SamplerKind::kUniPcB, SamplerKind::kEuler}) {
    const auto run = [&](int64_t interrupted_at) {
      Sampler sampler(kind, 6, 3);
      std::vector<float> x = {0.3f, -1.5f, 2.0f, 0.0f};
      while (!sampler.done()) {
        if (sampler.step() == interrupted_at) {
          const Sampler::State state = sampler.state();
          sampler = Sampler(kind, 6, 3);
          sampler.Restore(state);
        }
        sampler.Step(Velocity(x, sampler.schedule().sigmas[static_cast<size_t>(sampler.step())]),
                     x);
      }
      return x;
    };
    const std::vector<float> whole = run(-1);
    for (int64_t at = 0; at < 6; ++at) EXPECT_EQ(run(at), whole) << at;
  }
}

TEST(SchedulerConfig, TakesWansAndRefusesOthers) {
  const TempFolder folder;
  const std::string wan =
      R"("_class_name":"UniPCMultistepScheduler","prediction_type":"flow_prediction","use_flow_sigmas":true)";
  const auto read = [&](const std::string& members) {
    return ReadSchedulerConfig(folder.Write("scheduler_config.json", "{" + members + "}"));
  };
  EXPECT_EQ(read(wan).shift, 1.0);
  EXPECT_EQ(read(wan + R"(,"flow_shift":5,"whatever":3,"sigma_min":null)").shift, 5.0);
  EXPECT_EQ(read(R"("_class_name":"FlowMatchEulerDiscreteScheduler","shift":3)").kind,
            SamplerKind::kEuler);
  const char* others[] = {R"("solver_order":3)",
                          R"("predict_x0":false)",
                          R"("solver_type":"bh1")",
                          R"("lower_order_final":false)",
                          R"("disable_corrector":[0])",
                          R"("final_sigmas_type":"sigma_min")",
                          R"("thresholding":true)",
                          R"("timestep_spacing":"leading")",
                          R"("steps_offset":1)",
                          R"("use_karras_sigmas":true)",
                          R"("use_dynamic_shifting":true)",
                          R"("shift_terminal":0.02)",
                          R"("num_train_timesteps":500)",
                          R"("flow_shift":0)",
                          R"("sigma_max":1.0)",
                          R"("flow_shift":"3")"};
  for (const char* other : others) EXPECT_THROW(read(wan + "," + other), InputError) << other;
  EXPECT_THROW(read(R"("_class_name":"DDIMScheduler")"), InputError);
  EXPECT_THROW(read(R"("_class_name":"UniPCMultistepScheduler")"), InputError);
  for (const char* model : {"tests/golden/tiny-wan", "models/wan-mini"}) {
    const SchedulerConfig config =
        ReadSchedulerConfig(InRepository(model) + "/scheduler/scheduler_config.json");
    EXPECT_EQ(config.kind, SamplerKind::kUniPc);
    EXPECT_EQ(config.shift, 3.0);
  }
}

}  // namespace
}  // namespace equitile

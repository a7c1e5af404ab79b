#include "equitile/generate/run_checkpoint.h"

#include <gtest/gtest.h>

#include "equitile/base/error.h"
#include "tests/in_repository.h"
#include "tests/refusal.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

RunCheckpoint Sample() {
  RunCheckpoint checkpoint;
  checkpoint.identity = {{"prompt", "a \"red\" circle\n"}, {"seed", "42"}};
  checkpoint.version = "0.2.0";
  checkpoint.shape = {2, 1, 3, 2};
  checkpoint.state.sampler.step = 3;
  checkpoint.steps = {{.seconds = 0.1}, {.seconds = 1e-9, .skipped = true}, {.seconds = 7}};
  for (int i = 0; i < 12; ++i) {
    const auto value = static_cast<float>(i);
    checkpoint.state.latents.push_back(value / 3);
    checkpoint.state.sampler.corrected.push_back(value);
    checkpoint.state.sampler.estimate.push_back(-value);
    checkpoint.state.sampler.older_estimate.push_back(value / 7);
  }
  return checkpoint;
}

TEST(RunCheckpoint, ReadsBackWhatItWrote) {
  const TempFolder folder;
  RunCheckpoint written = Sample();
  for (bool with_history : {true, false}) {
    if (!with_history) written.state.sampler.older_estimate.clear();
    WriteRunCheckpoint(folder / "a.ckpt", written);
    const RunCheckpoint read = ReadRunCheckpoint(folder / "a.ckpt");
    EXPECT_EQ(read.identity, written.identity);
    EXPECT_EQ(read.version, written.version);
    EXPECT_EQ(read.shape, written.shape);
    EXPECT_EQ(read.steps, written.steps);
    EXPECT_EQ(read.state.latents, written.state.latents);
    EXPECT_EQ(read.state.sampler.step, 3);
    EXPECT_EQ(read.state.sampler.corrected, written.state.sampler.corrected);
    EXPECT_EQ(read.state.sampler.estimate, written.state.sampler.estimate);
    EXPECT_EQ(read.state.sampler.older_estimate, written.state.sampler.older_estimate);
  }
}

TEST(RunCheckpoint, EveryChangedByteIsNoticed) {
  const TempFolder folder;
  WriteRunCheckpoint(folder / "a.ckpt", Sample());
  const std::string good = folder.Read("a.ckpt");
  for (size_t i = 0; i < good.size(); ++i) {
    if (good[i] == ' ') continue;  // most are padding of the header
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    EXPECT_THROW(ReadRunCheckpoint(folder.Write("b.ckpt", bad)), InputError) << i;
  }
  for (size_t length = 0; length < good.size(); length += 7) {
    EXPECT_THROW(ReadRunCheckpoint(folder.Write("b.ckpt", good.substr(0, length))), InputError);
  }
}

std::string RefusalOf(const RunCheckpoint& checkpoint,
                      const std::map<std::string, std::string>& identity) {
  return Refusal([&] { CheckSameRun("a.ckpt", checkpoint, identity); });
}

TEST(RunCheckpoint, OfAnotherRunIsRefused) {
  RunCheckpoint checkpoint = Sample();
  auto identity = checkpoint.identity;
  EXPECT_EQ(RefusalOf(checkpoint, identity), "");
  identity["seed"] = "43";
  EXPECT_EQ(RefusalOf(checkpoint, identity),
            "[generate] a.ckpt: belongs to another run: its seed is '42', not '43'");
  identity["seed"] = "42";
  identity["new"] = "x";
  EXPECT_EQ(RefusalOf(checkpoint, identity),
            "[generate] a.ckpt: belongs to another run: its new is left open, not 'x'");
  identity.erase("new");
  identity.erase("seed");
  EXPECT_EQ(RefusalOf(checkpoint, identity),
            "[generate] a.ckpt: belongs to another run: its seed is '42', not left open");
  // Texts that differ where messages no longer show them.
  checkpoint.identity = {{"prompt", std::string(100, 'a') + "b"}};
  EXPECT_NE(RefusalOf(checkpoint, {{"prompt", std::string(100, 'a') + "c"}}), "");
}

TEST(RunCheckpoint, HistoryMustBeThere) {
  const std::vector<float> some(6);
  const Sampler::State begun = {
      .step = 1, .corrected = some, .estimate = some, .older_estimate = {}};
  for (const SamplerKind kind : {SamplerKind::kUniPc, SamplerKind::kEuler}) {
    EXPECT_TRUE(Sampler::IsWhole(kind, {}, 6));
    EXPECT_TRUE(Sampler::IsWhole(kind, begun, 6));
    EXPECT_FALSE(Sampler::IsWhole(kind, begun, 7));
    Sampler::State state = begun;
    state.step = 2;
    EXPECT_EQ(Sampler::IsWhole(kind, state, 6), kind == SamplerKind::kEuler);
    state.older_estimate = some;
    EXPECT_TRUE(Sampler::IsWhole(kind, state, 6));
    state.corrected.clear();
    EXPECT_EQ(Sampler::IsWhole(kind, state, 6), kind == SamplerKind::kEuler);
    state.step = -1;
    EXPECT_FALSE(Sampler::IsWhole(kind, state, 6));
  }
}

TEST(RunCheckpoint, OtherFilesAreRefused) {
  EXPECT_THROW(ReadRunCheckpoint(InRepository("tests/golden/noise.safetensors")), InputError);
  EXPECT_THROW(ReadRunCheckpoint("/nonexistent.ckpt"), InputError);
}

}  // namespace
}  // namespace equitile

#include "equitile/pattern/synthetic_mask.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <string>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"

namespace equitile {
namespace {

double UlyssesRho(const BlockMask& mask, int64_t ranks) {
  int64_t most = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Range lanes = EvenPart(mask.LaneCount(), rank, ranks);
    int64_t work = 0;
    for (int64_t lane = lanes.begin; lane < lanes.end; ++lane) work += mask.LaneKept(lane);
    most = std::max(most, work);
  }
  return static_cast<double>(most * ranks) / static_cast<double>(mask.Kept());
}

double RingRho(const BlockMask& mask, int64_t ranks) {
  std::vector<int64_t> cell(static_cast<size_t>(ranks * ranks));
  for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
    for (int64_t q = 0; q < mask.QBlocks(); ++q) {
      mask.ForEachKept(lane, q, [&](int64_t kv) {
        ++cell[static_cast<size_t>(q * ranks / mask.QBlocks() * ranks +
                                   kv * ranks / mask.KvBlocks())];
      });
    }
  }
  int64_t sum = 0;
  for (int64_t stage = 0; stage < ranks; ++stage) {
    int64_t most = 0;
    for (int64_t r = 0; r < ranks; ++r)
      most = std::max(most, cell[static_cast<size_t>(r * ranks + (r + stage) % ranks)]);
    sum += most;
  }
  return static_cast<double>(sum * ranks) / static_cast<double>(mask.Kept());
}

uint64_t BitsHash(const BlockMask& mask) { return Hasher().Add(mask.Words()).Digest(); }

const std::vector<SyntheticKind> kKinds = {SyntheticKind::kWan, SyntheticKind::kUniform,
                                           SyntheticKind::kBanded, SyntheticKind::kOneDense,
                                           SyntheticKind::kHeadline};

SyntheticSpec AnySpec() {
  SyntheticSpec spec;
  spec.kind = *rc::gen::elementOf(kKinds);
  spec.heads = *rc::gen::inRange(1, 65);
  spec.blocks = *rc::gen::inRange(1, 201);
  spec.batch = *rc::gen::inRange(1, 3);
  spec.block_tokens = 16 * *rc::gen::inRange(1, 17);
  spec.density_ppm = *rc::gen::inRange(0, 1'000'001);
  spec.seed = *rc::gen::inRange<uint64_t>(0, 1'000'000);
  return spec;
}

TEST(SyntheticMask, TextAndSpecAreOneToOne) {
  EXPECT_TRUE(rc::check([] {
    const SyntheticSpec spec = AnySpec();
    RC_ASSERT(ParseSyntheticSpec(SyntheticSpecText(spec)) == spec);
  }));
  EXPECT_EQ(ParseSyntheticSpec("wan"), DefaultSpec(SyntheticKind::kWan));
  const SyntheticSpec spec =
      ParseSyntheticSpec("one-dense,blocks=7,density=0.05,block=128,batch=2");
  EXPECT_EQ(spec.kind, SyntheticKind::kOneDense);
  EXPECT_EQ(spec.blocks, 7);
  EXPECT_EQ(spec.density_ppm, 50'000);
  EXPECT_EQ(spec.block_tokens, 128);
  EXPECT_EQ(spec.batch, 2);
  const SyntheticSpec profile = ParseSyntheticSpec("profile,file=a/b.npy,step=11,blocks=9");
  EXPECT_EQ(profile.file, "a/b.npy");
  EXPECT_EQ(profile.step, 11);
  EXPECT_EQ(ParseSyntheticSpec(SyntheticSpecText(profile)), profile);
  EXPECT_EQ(ParseSyntheticSpec("uniform,density=1").density_ppm, 1'000'000);
  EXPECT_EQ(ParseSyntheticSpec("uniform,density=0.123456").density_ppm, 123'456);
}

TEST(SyntheticMask, RefusesWhatItDoesNotKnowAndSaysWhatItDoes) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      ParseSyntheticSpec(text);
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(message("wam").find("headline or profile"), std::string::npos);
  EXPECT_NE(message("").find("headline or profile"), std::string::npos);
  EXPECT_NE(message("profile").find("file=FILE"), std::string::npos);
  EXPECT_NE(message("profile,file=f,heads=3").find("file, step, blocks"), std::string::npos);
  EXPECT_NE(message("wan,step=3").find("heads, blocks, density"), std::string::npos);
  EXPECT_NE(message("wan,rows=3").find("heads, blocks, density"), std::string::npos);
  EXPECT_NE(message("wan,").find("heads, blocks, density"), std::string::npos);
  for (const char* bad : {"wan,heads=0",
                          "wan,heads=x",
                          "wan,heads=",
                          "wan,heads",
                          "wan,heads=3.5",
                          "wan,blocks=-1",
                          "wan,blocks=9999999999",
                          "wan,density=1.1",
                          "wan,density=.",
                          "wan,density=-0.1",
                          "wan,density=0.1234567",
                          "wan,density=1e-2",
                          "wan,density=99999999999999999999",
                          "wan,density=999999999999999999",
                          "wan,density=1000000000000",
                          "profile,file=f,step=0",
                          "profile,file=f,step=x",
                          "profile,file=f,density=0.1",
                          "wan,block=17",
                          "wan,block=8",
                          "wan,seed=-1",
                          "wan,batch=0",
                          "wan,heads=1000000,blocks=1000000"}) {
    EXPECT_NE(message(bad), "accepted") << bad;
  }
}

TEST(SyntheticMask, EveryRowKeepsABlockAndNothingLiesOutside) {
  EXPECT_TRUE(rc::check([] {
    const SyntheticSpec spec = AnySpec();
    const BlockMask mask = MakeSyntheticMask(spec);
    RC_ASSERT(mask == MakeSyntheticMask(spec));
    RC_ASSERT(mask.lanes() == (Lanes{spec.batch, spec.heads}));
    RC_ASSERT(mask.QBlocks() == spec.blocks);
    RC_ASSERT(mask.KvBlocks() == spec.blocks);
    const int64_t tail = spec.blocks % 64;
    for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
      for (int64_t q = 0; q < spec.blocks; ++q) {
        RC_ASSERT((mask.RowCount(lane, q) > 0) == (spec.density_ppm > 0));
        RC_ASSERT(tail == 0 || mask.Row(lane, q).back() >> tail == 0u);
      }
    }
  }));
}

TEST(SyntheticMask, MeetsTheDensity) {
  for (SyntheticKind kind : kKinds) {
    for (int64_t blocks : {64, 200}) {
      for (int64_t percent : {15, 30, 60, 90}) {
        SyntheticSpec spec = DefaultSpec(kind);
        spec.blocks = blocks;
        spec.density_ppm = percent * 10'000;
        const double density = MakeSyntheticMask(spec).Density();
        EXPECT_NEAR(density, 0.01 * static_cast<double>(percent), 0.03) << SyntheticSpecText(spec);
      }
    }
  }
}

// The figures that db-SP publishes for Wan2.1 (Ulysses 1.355, ring 1.255) and as its headline
// (1.51, 1.60).
TEST(SyntheticMask, IsAsUnevenAsPublished) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SyntheticSpec wan = DefaultSpec(SyntheticKind::kWan);
    wan.blocks = 256;
    wan.seed = seed;
    const BlockMask wan_mask = MakeSyntheticMask(wan);
    EXPECT_NEAR(UlyssesRho(wan_mask, 8), 1.35, 0.05) << seed;
    EXPECT_NEAR(RingRho(wan_mask, 8), 1.25, 0.10) << seed;
    SyntheticSpec headline = DefaultSpec(SyntheticKind::kHeadline);
    headline.blocks = 256;
    headline.seed = seed;
    const BlockMask headline_mask = MakeSyntheticMask(headline);
    EXPECT_NEAR(UlyssesRho(headline_mask, 4), 1.51, 0.05) << seed;
    EXPECT_NEAR(RingRho(headline_mask, 4), 1.58, 0.10) << seed;
  }
}

TEST(SyntheticMask, KindsAreWhatTheySay) {
  SyntheticSpec spec = DefaultSpec(SyntheticKind::kOneDense);
  spec.blocks = 100;
  const BlockMask one = MakeSyntheticMask(spec);
  int64_t dense = 0;
  for (int64_t lane = 0; lane < one.LaneCount(); ++lane) {
    const int64_t kept = one.LaneKept(lane);
    dense += kept == 100 * 100;
    EXPECT_TRUE(kept == 100 * 100 || kept < 2500) << lane;
  }
  EXPECT_EQ(dense, 1);

  spec = DefaultSpec(SyntheticKind::kBanded);
  spec.blocks = 100;
  const BlockMask banded = MakeSyntheticMask(spec);
  for (int64_t q = 0; q < 100; ++q) {
    const std::vector<int32_t> kept = banded.KeptInRow(3, q);
    EXPECT_EQ(kept.back() - kept.front() + 1, static_cast<int32_t>(kept.size()));
    EXPECT_TRUE(banded.Get(3, q, q));
  }
}

TEST(SyntheticMask, ProfilesAreAsDenseAsTold) {
  const SyntheticSpec spec = ParseSyntheticSpec("profile,file=f,blocks=128,batch=2");
  const std::vector<int64_t> densities = {0,       7'000,   20'000,  73'000,  150'000,
                                          300'000, 466'000, 700'000, 900'000, 1'000'000};
  for (int64_t layer : {0, 1, 7}) {
    const BlockMask mask = MakeProfileMask(spec, layer, densities);
    EXPECT_EQ(mask.lanes(), (Lanes{2, 10}));
    EXPECT_EQ(mask, MakeProfileMask(spec, layer, densities));
    for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
      const double is = static_cast<double>(mask.LaneKept(lane)) / (128 * 128);
      const double wanted = 1e-6 * static_cast<double>(densities[static_cast<size_t>(lane % 10)]);
      EXPECT_NEAR(is, std::max(wanted, 1.0 / 128), 0.04) << "layer " << layer << ", lane " << lane;
      for (int64_t q = 0; q < 128; ++q) ASSERT_GT(mask.RowCount(lane, q), 0);
    }
    EXPECT_NE(mask, MakeProfileMask(spec, layer + 1, densities));
  }
  EXPECT_THROW(MakeSyntheticMask(spec), InputError);
  EXPECT_THROW(MakeProfileMask(spec, 0, {}), InputError);
}

// Pinned so that a change of platform or compiler that changes bits is seen.
TEST(SyntheticMask, BitsAreTheSameEverywhere) {
  const auto hash = [](const char* text) {
    return BitsHash(MakeSyntheticMask(ParseSyntheticSpec(text)));
  };
  EXPECT_EQ(hash("wan,heads=24,blocks=96"), 7356590228595679788u);
  EXPECT_EQ(hash("headline,heads=10,blocks=61,seed=7,batch=2"), 2015744980208914479u);
  EXPECT_EQ(hash("uniform,heads=3,blocks=130,density=0.2"), 6289425382889438047u);
}

TEST(SyntheticMask, DriftGoesRowByRowFromSeedToSeed) {
  const SyntheticSpec spec = ParseSyntheticSpec("wan,heads=5,blocks=67,seed=3");
  SyntheticSpec next = spec;
  next.seed = 4;
  const BlockMask from = MakeSyntheticMask(spec), to = MakeSyntheticMask(next);
  const auto same = [](const BlockMask& a, const BlockMask& b, int64_t lane, int64_t row) {
    return std::ranges::equal(a.Row(lane, row), b.Row(lane, row));
  };
  const BlockMask start = MakeDriftingMask(spec, 0), end = MakeDriftingMask(spec, 1);
  const BlockMask early = MakeDriftingMask(spec, 0.25), late = MakeDriftingMask(spec, 0.75);
  int64_t changed_early = 0, rows = 0;
  for (int64_t lane = 0; lane < from.LaneCount(); ++lane) {
    for (int64_t row = 0; row < from.QBlocks(); ++row, ++rows) {
      EXPECT_TRUE(same(start, from, lane, row) && same(end, to, lane, row));
      const bool is_new = same(early, to, lane, row) && !same(from, to, lane, row);
      changed_early += is_new;
      EXPECT_TRUE(is_new || same(early, from, lane, row));
      if (is_new) EXPECT_TRUE(same(late, to, lane, row));  // what has changed stays
    }
  }
  EXPECT_NEAR(static_cast<double>(changed_early) / static_cast<double>(rows), 0.25, 0.08);
  EXPECT_THROW(MakeDriftingMask(spec, -1), InputError);
}

}  // namespace
}  // namespace equitile

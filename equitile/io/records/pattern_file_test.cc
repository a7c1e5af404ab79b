#include "equitile/io/records/pattern_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "equitile/base/error.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

using nlohmann::json;

PatternHead AnyHead(const TokenGrid& grid) {
  PatternHead head;
  head.pattern.mode =
      *rc::gen::elementOf(std::vector<HeadMode>(kHeadModes.begin(), kHeadModes.end()));
  if (head.pattern.mode == HeadMode::kDiagonal || head.pattern.mode == HeadMode::kMultiDiagonal)
    head.pattern.size = *rc::gen::inRange(0, 1000) / 7.0;
  if (head.pattern.mode == HeadMode::kStripes) {
    for (int64_t at = *rc::gen::inRange(0, 3); at < grid.VideoTokens();
         at += *rc::gen::inRange(2, 40)) {
      if (!head.pattern.columns.empty() && head.pattern.columns.back().end >= at) continue;
      head.pattern.columns.push_back(
          {at, std::min(grid.VideoTokens(), at + *rc::gen::inRange(1, 9))});
    }
    if (head.pattern.columns.empty()) head.pattern.columns.push_back({0, 1});
  }
  head.density = *rc::gen::inRange(0, 1001) / 1000.0;
  head.error = *rc::gen::inRange(0, 1000) / 3.0;
  if (*rc::gen::arbitrary<bool>()) head.predict_mass = *rc::gen::inRange(0, 101) / 100.0;
  if (*rc::gen::arbitrary<bool>()) head.observe_mass = *rc::gen::inRange(0, 101) / 100.0;
  return head;
}

PatternFile AnyFile() {
  PatternFile file;
  file.model = *rc::gen::arbitrary<uint64_t>();
  file.grid = {*rc::gen::inRange(1, 9), *rc::gen::inRange(1, 9), *rc::gen::inRange(1, 9),
               *rc::gen::inRange(0, 9), *rc::gen::inRange(0, 9)};
  file.grid.home = *rc::gen::elementOf(
      std::vector<TokenOrder>{TokenOrder::kFHW, TokenOrder::kHilbert, TokenOrder::Tiles(2, 4, 4)});
  file.block_tokens = 16 * *rc::gen::inRange(1, 17);
  file.prompts = {"a fox, \"quoted\"\n\xc3\xa9", ""};
  file.seeds = {0, 1, INT64_MAX};
  file.objective = "relative";
  file.dials = {{"epsilon", 0.1}, {"lambda", 0.5}};
  file.density = 0.31;
  file.predicted_speedup = 1.0 / 3;
  file.measured = {{"psnr", 31.25}, {"ssim", 0.93}};
  const int layers = *rc::gen::inRange(1, 4), heads = *rc::gen::inRange(1, 4),
            ranges = *rc::gen::inRange(1, 4);
  for (int r = 0; r < ranges; ++r) {
    PatternRange range;
    range.high = r == 0 ? 1.0 : file.ranges.back().low;
    range.low = r == ranges - 1 ? 0.0 : range.high * 0.7;
    for (int layer = 0; layer < layers; ++layer) {
      range.layers.emplace_back();
      for (int head = 0; head < heads; ++head) range.layers.back().push_back(AnyHead(file.grid));
    }
    file.ranges.push_back(range);
  }
  const int weighed = *rc::gen::inRange(0, 3);  // ranges of their own
  for (int r = 0; r < weighed; ++r) {
    ErrorWeights weights;
    weights.high = r == 0 ? 1.0 : file.error_weights.back().low;
    weights.low = r == weighed - 1 ? 0.0 : weights.high * 0.6;
    for (int layer = 0; layer < layers; ++layer)
      weights.layers.push_back(*rc::gen::inRange(0, 4000) / 7.0);
    file.error_weights.push_back(weights);
  }
  return file;
}

TEST(PatternFile, ReadsBackWhatItWrote) {
  EXPECT_TRUE(rc::check("through text", [] {
    const PatternFile file = AnyFile();
    const std::string text = PatternFileText(file);
    RC_ASSERT(ParsePatternFile(text, "p.json") == file);
    RC_ASSERT(LooksLikePatternFile(text));
  }));
}

// Two layers of three heads, two ranges.
PatternFile SmallFile() {
  PatternFile file;
  file.model = 0x0123456789abcdef;
  file.grid = {3, 4, 4};
  const PatternHead full, band{{HeadMode::kDiagonal, 1.5, {}}, 0.5, 0.01, 0.9, 0.95},
      stripes{{HeadMode::kStripes, 0, {{0, 4}, {8, 9}}}, 0.25, 0.02, {}, {}},
      skip{{HeadMode::kSkip, 0, {}}, 0, 0.03, {}, {}};
  file.ranges.push_back({0.6, 1, {{full, band, stripes}, {skip, full, full}}});
  file.ranges.push_back({0, 0.6, {{band, band, band}, {skip, skip, skip}}});
  return file;
}

TEST(PatternFile, ThroughAFile) {
  const TempFolder folder;
  WritePatternFile(folder / "p.json", SmallFile());
  EXPECT_EQ(ReadPatternFile(folder / "p.json"), SmallFile());
  EXPECT_EQ(folder.FileCount(), 1);
  EXPECT_THROW(ReadPatternFile(folder / "missing.json"), InputError);
}

TEST(PatternFile, RangesAreOfNoise) {
  const PatternFile file = SmallFile();
  const auto mode = [&](double sigma, int64_t layer, size_t head) {
    return file.HeadsAt(sigma, layer)[head].pattern.mode;
  };
  EXPECT_EQ(mode(1, 0, 2), HeadMode::kStripes);
  EXPECT_EQ(mode(0.61, 0, 2), HeadMode::kStripes);
  EXPECT_EQ(mode(0.6, 0, 2), HeadMode::kDiagonal);  // low < sigma <= high
  EXPECT_EQ(mode(0.001, 1, 1), HeadMode::kSkip);
  EXPECT_EQ(mode(0, 1, 1), HeadMode::kSkip);
  EXPECT_EQ(mode(1.5, 0, 0), HeadMode::kFull);
  EXPECT_EQ(file.Layers(), 2);
  EXPECT_EQ(file.Heads(), 3);
}

TEST(PatternFile, WeightsAreOfNoiseAndLayer) {
  PatternFile file = SmallFile();
  EXPECT_EQ(file.ErrorWeightAt(0.5, 1), 1);
  EXPECT_EQ(json::parse(PatternFileText(file))["version"], 1);
  file.error_weights = {{0.3, 1, {0.5, 2}}, {0, 0.3, {0, 4}}};
  EXPECT_EQ(file.ErrorWeightAt(1, 0), 0.5);
  EXPECT_EQ(file.ErrorWeightAt(0.31, 1), 2);
  EXPECT_EQ(file.ErrorWeightAt(0.3, 1), 4);
  EXPECT_EQ(file.ErrorWeightAt(0, 0), 0);
  EXPECT_EQ(json::parse(PatternFileText(file))["version"], 2);
}

// Refused in one line that says what and where.
void Refused(json file, const std::string& words) {
  try {
    ParsePatternFile(file.dump(), "p.json");
    ADD_FAILURE() << "accepted: " << words;
  } catch (const InputError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_NE(message.find("p.json"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(PatternFile, RefusesWeightsThatDoNotFit) {
  PatternFile weighed = SmallFile();
  weighed.error_weights = {{0.3, 1, {0.5, 2}}, {0, 0.3, {0, 4}}};
  const json good = json::parse(PatternFileText(weighed));
  const auto with = [&](const char* pointer, const json& value) {
    json file = good;
    file[json::json_pointer(pointer)] = value;
    return file;
  };
  Refused(with("/version", 1), "is of version 2");
  Refused(with("/error_weights", json::array()), "reach down to sigma 0");
  Refused(with("/error_weights/1/sigma", {0.1, 0.3}), "reach down to sigma 0");
  Refused(with("/error_weights/1/sigma", {0, 0.2}), "without gaps");
  Refused(with("/error_weights/0/layers", {1}), "must have 2 entries, has 1");
  Refused(with("/error_weights/0/layers/1", -0.5), "-0.5");
  Refused(with("/error_weights/0/layers/1", 1e4), "1000");
  Refused(with("/error_weights/0/layers/1", "much"), "number");
  Refused(with("/error_weights/0/heads", 1), "unknown key 'heads'");
}

TEST(PatternFile, RefusesWhatIsNoPattern) {
  const json good = json::parse(PatternFileText(SmallFile()));
  const auto with = [&](const char* pointer, const json& value) {
    json file = good;
    file[json::json_pointer(pointer)] = value;
    return file;
  };
  for (const auto& item : good.items()) {
    if (item.key() == "text") continue;
    json file = good;
    file.erase(item.key());
    Refused(file, "'" + item.key() + "' is missing");
  }
  Refused(with("/version", 3), "reads versions 1 and 2");
  Refused(with("/version", 2), "'error_weights' is missing");
  Refused(with("/kind", "plan"), "'kind'");
  Refused(with("/model", "12"), "16 hexadecimal");
  Refused(with("/grid", {3, 4}), "3 entries");
  Refused(with("/grid", {1 << 20, 1 << 20, 1 << 20}), "tokens");
  Refused(with("/block", 60), "multiple of 16");
  Refused(with("/home_order", "fhv"), "hilbert");
  Refused(with("/layers", 3), "must have 3 entries, has 2");
  Refused(with("/heads", 1), "must have 1 entries, has 3");
  Refused(with("/extra", 1), "unknown key 'extra'");
  Refused(with("/measured/psnr", "high"), "'psnr' must be a number");
  Refused(with("/totals/density", 1.5), "totals.density");
  Refused(with("/ranges", json::array()), "sigma 0");
  Refused(with("/ranges/0/sigma/1", 0.9), "must be 1");
  Refused(with("/ranges/1/sigma/1", 0.5), "must be 0.6");
  Refused(with("/ranges/1/sigma/0", 0.1), "sigma 0");
  Refused(with("/ranges/1/sigma/0", 0.6), "low < high");
  Refused(with("/ranges/0/layers/0/1/mode", "diag"), "multi-diagonal");
  Refused(with("/ranges/0/layers/0/1/size", -1), "ranges[0].layers[0][1].size");
  Refused(with("/ranges/0/layers/0/0/size", 1), "unknown key 'size'");
  Refused(with("/ranges/0/layers/0/2/columns", json::array()), "without columns");
  Refused(with("/ranges/0/layers/0/2/columns/1/1", 49), "48 video tokens");
  Refused(with("/ranges/0/layers/0/2/density", -0.1), "density");
  Refused(with("/ranges/0/layers/0/1/p", 1.01), "p'");
  Refused(with("/calibration/seeds/0", -1), "seeds[0]");
}

TEST(PatternFile, KnowsItsKind) {
  EXPECT_FALSE(LooksLikePatternFile(""));
  EXPECT_FALSE(LooksLikePatternFile("[1]"));
  EXPECT_FALSE(LooksLikePatternFile(R"({"kind": 3})"));
  EXPECT_FALSE(LooksLikePatternFile(R"({"ranks": 4})"));
  EXPECT_TRUE(LooksLikePatternFile(R"({"kind": "pattern"})"));
}

TEST(PatternFile, FitsItsModelAndWarnsOnAnotherGrid) {
  const PatternFile file = SmallFile();
  const PatternUse use = {file.model, 2, 3, file.grid, file.block_tokens};
  EXPECT_EQ(CheckPatternFits(file, use, "p.json"), "");
  const auto refused = [&](const PatternUse& other) -> std::string {
    try {
      CheckPatternFits(file, other, "p.json");
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refused({1, 2, 3, file.grid}).find("0123456789abcdef"), std::string::npos);
  EXPECT_NE(refused({file.model, 4, 3, file.grid}).find("4 of 3"), std::string::npos);
  EXPECT_NE(refused({file.model, 2, 2, file.grid}).find("2 of 2"), std::string::npos);
  PatternUse other = use;
  other.grid.home = TokenOrder::kHilbert;
  EXPECT_NE(refused(other).find("hilbert"), std::string::npos);
  other = use;
  other.grid.frames = 5;
  const std::string warning = CheckPatternFits(file, other, "p.json");
  EXPECT_NE(warning.find("3x4x4"), std::string::npos) << warning;
  EXPECT_NE(warning.find("5x4x4"), std::string::npos) << warning;
  EXPECT_EQ(warning.find('\n'), std::string::npos) << warning;
  other = use;
  other.grid.text_after = 7;
  EXPECT_NE(CheckPatternFits(file, other, "p.json").find("text of 0 + 7"), std::string::npos);
  other = use;
  other.block_tokens = 2 * file.block_tokens;
  const std::string blocks = CheckPatternFits(file, other, "p.json");
  EXPECT_NE(blocks.find(fmt::format("in blocks of {}, this", file.block_tokens)), std::string::npos)
      << blocks;
  EXPECT_NE(blocks.find(fmt::format("in blocks of {}:", other.block_tokens)), std::string::npos)
      << blocks;
}

// Whatever happens to a file: an InputError or a pattern, never a crash.
TEST(PatternFile, DamagedFilesAreRefusedOrRead) {
  const std::string good = PatternFileText(SmallFile());
  int64_t refused = 0;
  const auto attempt = [&](const std::string& text) {
    try {
      ParsePatternFile(text, "p.json");
    } catch (const InputError&) {
      ++refused;
    }
    LooksLikePatternFile(text);
  };
  for (size_t size = 0; size < good.size(); ++size) attempt(good.substr(0, size));
  for (size_t i = 0; i < good.size(); ++i) {
    for (char flip : {'\x01', '\x02', '\x10', '\x80'}) {
      std::string changed = good;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      attempt(changed);
    }
  }
  EXPECT_GT(refused, static_cast<int64_t>(good.size()));
}

}  // namespace
}  // namespace equitile

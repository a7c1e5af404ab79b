#include "equitile/io/records/plan_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "equitile/base/error.h"
#include "equitile/io/records/machine_file.h"
#include "equitile/pattern/mask_hash.h"
#include "equitile/plan/planners/random_plan_testing.h"

namespace equitile {
namespace {

using nlohmann::json;
using testing::CheckCases;
using testing::RandomCase;

TEST(PlanFile, RoundTripsEveryPlan) {
  EXPECT_TRUE(CheckCases("any plan", [](RandomCase& random) {
    const Plan plan = random.MakePlan(random.MakeProblem());
    const std::vector<int64_t> work(static_cast<size_t>(plan.ranks()), int64_t{1} << 60);
    const std::string text =
        PlanFileText(MakePlanFile(plan, 0xfedcba9876543210, {.block = 3, .row = 7}, work));
    const PlanFile back = ParsePlanFile(text, "text");
    RC_ASSERT(back.HashMatches());
    RC_ASSERT(back.homes_match);
    RC_ASSERT(Plan(back.parts) == plan);
    RC_ASSERT(back.hash == plan.hash());
    RC_ASSERT(back.mask_hash == 0xfedcba9876543210);
    RC_ASSERT(back.cost == (CostModel{.block = 3, .row = 7}));
    RC_ASSERT(back.work_per_rank == work);
    RC_ASSERT(PlanFileText(back) == text);
  }));
}

class EditedPlanFile : public ::testing::Test {
 protected:
  EditedPlanFile() {
    const Problem problem{
        .ranks = 4,
        .lanes = {.batch = 1, .heads = 3},
        .grid = {.q_tokens = 320, .kv_tokens = 320, .block_tokens = 64},
        .token_grid = {.frames = 5, .height = 8, .width = 8, .text_before = 0, .text_after = 0},
        .orders = {TokenOrder::kFHW, TokenOrder::kHWF, TokenOrder::kFHW}};
    const RowRuns whole = {{.end = 5, .rank = 1, .stage = 0}};
    const RowRuns split = {{.end = 2, .rank = 0, .stage = 1}, {.end = 5, .rank = 3, .stage = 0}};
    exchange_ = Text(
        MakeExchangePlan(problem, {.name = "fractional", .ulysses = 0, .ring = 0, .parameters = {}},
                         {whole, split, whole}, true));
    ring_ = Text(PlanUsp(problem, 2, 2));
  }

  static json Text(const Plan& plan) {
    return json::parse(PlanFileText(MakePlanFile(plan, 1, {}, std::vector<int64_t>(4, 5))));
  }

  static void Refused(json file, const std::string& words) {
    try {
      const PlanFile read = ParsePlanFile(file.dump(), "p.json");
      Plan(read.parts);
      ADD_FAILURE() << "accepted: " << words;
    } catch (const InputError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(words), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }

  json exchange_, ring_;
};

TEST_F(EditedPlanFile, AnotherOwnerContradictsTheHash) {
  exchange_["row_owner"][1][0] = 2;
  EXPECT_FALSE(ParsePlanFile(exchange_.dump(), "p.json").HashMatches());
  ring_["row_owner"][0][0] = 1;  // a rank of the other ring group
  EXPECT_FALSE(ParsePlanFile(ring_.dump(), "p.json").HashMatches());
}

TEST_F(EditedPlanFile, EveryEditOfAPartContradictsTheHash) {
  auto changed = [](json file, const char* pointer, const json& value) {
    file[json::json_pointer(pointer)] = value;
    EXPECT_FALSE(ParsePlanFile(file.dump(), "p.json").HashMatches()) << pointer;
  };
  changed(exchange_, "/stages/head_group/0", 1);
  changed(exchange_, "/stages/head_group/1/0/1", 0);
  changed(exchange_, "/stages/needed_kv_only", false);
  changed(exchange_, "/orders/2", "whf");
  changed(exchange_, "/planner/name", "ulysses");
  changed(exchange_, "/grid/q_tokens", 319);
  changed(ring_, "/stages/rings/1/kv_owner/0", 1);
  changed(ring_, "/stages/rings/0/lanes/0", 1);
  changed(ring_, "/planner/ring", 1);
  json homes = exchange_;
  homes["homes"]["query"][1][0] = 0;
  EXPECT_FALSE(ParsePlanFile(homes.dump(), "p.json").homes_match);
}

// The default cut is written as it always was; any other by its first tokens.
TEST_F(EditedPlanFile, HomesAreThoseOfTheFile) {
  EXPECT_EQ(exchange_["homes"], json::parse(R"({"tile": 64, "query": [[0,1],[1,2],[2,3],[3,5]],
                                                "key": [[0,1],[1,2],[2,3],[3,5]]})"));
  const PlanFile stored = ParsePlanFile(exchange_.dump(), "p.json");
  Problem problem = stored.parts.problem;
  problem.homes = {0, 7, 7, 211};
  const Plan plan = PlanUsp(problem, 2, 2);
  const json file = Text(plan);
  EXPECT_EQ(file["homes"], json::parse(R"({"first_tokens": [[0, 7, 7, 211]]})"));
  const PlanFile back = ParsePlanFile(file.dump(), "p.json");
  EXPECT_TRUE(back.HashMatches() && back.homes_match);
  EXPECT_EQ(Plan(back.parts), plan);
  auto edit = [&](const json& homes, const std::string& words) {
    json edited = file;
    edited["homes"] = homes;
    Refused(edited, words);
  };
  edit({{"first_tokens", {{0, 8, 7, 211}}}}, "rank 2 begins at token 7; it must begin at 8 to 320");
  edit({{"first_tokens", {{1, 7, 7, 211}}}}, "rank 0 begins at token 1; it must begin at 0 to 0");
  edit({{"first_tokens", {{0, 7, 7, 321}}}}, "rank 3 begins at token 321");
  edit({{"first_tokens", {{0, 7, 7}}}}, "'homes.first_tokens[0]': must have 4 entries");
  edit({{"first_tokens", json::array()}}, "'homes.first_tokens': must have 1 entries");
  edit({{"first_tokens", {{0, 7, -1, 211}}}}, "'homes.first_tokens[0][2]' holds -1");
  edit({{"first_tokens", {{0, 7, 7, 211}}}, {"tile", 64}}, "tile");
  json other = file;
  other["homes"]["first_tokens"][0][1] = 6;
  EXPECT_FALSE(ParsePlanFile(other.dump(), "p.json").HashMatches());
}

TEST_F(EditedPlanFile, MalformedIsRefusedInOneLine) {
  for (const auto& item : exchange_.items()) {
    json without = exchange_;
    without.erase(item.key());
    Refused(without, "'" + item.key() + "' is missing");
    json wrong = exchange_;
    wrong[item.key()] = json::object({{"oops", 1}});
    Refused(wrong, item.key());
  }
  auto edit = [](json file, const char* pointer, const json& value, const std::string& words) {
    file[json::json_pointer(pointer)] = value;
    Refused(file, words);
  };
  edit(exchange_, "/version", 2, "reads version 1");
  edit(exchange_, "/ranks", 0, "'ranks' holds 0");
  edit(exchange_, "/ranks", -1, "'ranks' holds -1");
  edit(exchange_, "/ranks", 4.5, "'ranks' holds 4.5");
  edit(exchange_, "/hash", "12", "16 hexadecimal digits");
  edit(exchange_, "/row_owner/1/0", 4, "'row_owner[1][0]' holds 4");
  edit(exchange_, "/row_owner/1/0", "x", "'row_owner[1][0]'");
  edit(exchange_, "/row_owner/1", json::array(), "'row_owner[1]': must have 5 entries");
  edit(exchange_, "/work_per_rank", json::array({1}), "must have 4 entries");
  edit(exchange_, "/orders/1", "xyz", "'orders[1]' holds \"xyz\"");
  edit(exchange_, "/stages/movement", "fly", "must be exchange or ring");
  edit(exchange_, "/stages/oops", 1, "unknown key 'oops'");
  edit(exchange_, "/grid/block", 12, "'grid.block' holds 12");
  edit(exchange_, "/grid/video/0", 4, "token grid");
  edit(ring_, "/stages/rings/0/ranks", json::array({0, 0}), "rank 0 is in two ring groups");
  edit(ring_, "/stages/rings/0/kv_owner/0", 2, "kv owner 2");
  EXPECT_THROW(ParsePlanFile("{\"version\": 1,", "p.json"), InputError);
  EXPECT_THROW(ParsePlanFile("", "p.json"), InputError);
  EXPECT_THROW(ParsePlanFile("[1, 2]", "p.json"), InputError);
}

// Memory is asked for only once the file was seen to hold as much.
TEST_F(EditedPlanFile, SizesThatTheFileDoesNotHoldAreRefused) {
  json huge = exchange_;
  huge["orders"] = "fhw";
  huge["batch"] = huge["grid"]["heads"] = 1 << 20;
  Refused(huge, "'row_owner': must have 1099511627776 entries");
  json ranks = exchange_;
  ranks["ranks"] = 1 << 20;
  Refused(ranks, "'work_per_rank': must have 1048576 entries");
  json items = exchange_;
  items["orders"] = "fhw";
  items["batch"] = items["ranks"] = 1025;
  items["row_owner"] = std::vector<json>(1025 * 3, exchange_["row_owner"][0]);
  items["work_per_rank"] = std::vector<int64_t>(1025, 0);
  Refused(items, "their product may be at most");
}

TEST_F(EditedPlanFile, CostsThatDoNotFitAreRefused) {
  exchange_["cost"]["row"] = INT64_MAX;
  Refused(exchange_, "must fit 64 bits");
}

TEST(PlanFile, GoesThroughTheDisk) {
  const auto path = std::filesystem::temp_directory_path() / "equitile_plan_file_test.json";
  RandomCase random(7, 50);
  const Plan plan = random.MakePlan(random.MakeProblem());
  WritePlanFile(
      path, MakePlanFile(plan, 1, {}, std::vector<int64_t>(static_cast<size_t>(plan.ranks()), 0)));
  EXPECT_EQ(Plan(ReadPlanFile(path).parts), plan);
  std::filesystem::remove(path);
  EXPECT_THROW(ReadPlanFile(path), InputError);
}

TEST(MachineFile, RoundTripsAndRefuses) {
  const Machine machine{
      .target = "avx2",
      .threads = 2,
      .peak_gflops = 1.0 / 3,
      .kernel =
          {{.head_dim = 128, .block = 64, .dtype = "f32", .gflops = 123.456, .row_seconds = 1e-7}},
      .links = {{.name = "network", .link = {.latency_seconds = 2e-6, .bytes_per_second = 12.5e9}},
                {.name = "node", .link = {.latency_seconds = 1e-7, .bytes_per_second = 5e10}},
                {.name = "cable", .link = {.latency_seconds = 3e-6, .bytes_per_second = 1e10}}},
      .node_of = {0, 0, 1, 0, 1}};
  const std::string text = MachineFileText(machine);
  EXPECT_EQ(ParseMachineFile(text, "m.json"), machine);
  auto refused = [&](const char* pointer, const json& value, const std::string& words) {
    json file = json::parse(text);
    file[json::json_pointer(pointer)] = value;
    try {
      ParseMachineFile(file.dump(), "m.json");
      ADD_FAILURE() << "accepted " << pointer;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  refused("/kernel/0/gflops", 0, "'kernel[0].gflops' holds 0");
  refused("/kernel/0/gflops", "fast", "must be a number");
  refused("/links/0/class", "wire", "must be network, node or cable");
  refused("/links/0/latency_seconds", -1, "latency_seconds");
  refused("/threads", 0, "'threads' holds 0");
  refused("/oops", 1, "unknown key 'oops'");
  refused("/node_of/0", 5, "'node_of[0]' holds 5");
  // Files from before nodes were known.
  json old = json::parse(text);
  old.erase("node_of");
  old.erase("pack_bytes_per_second");
  old["links"].erase(2);
  const Machine read = ParseMachineFile(old.dump(), "m.json");
  EXPECT_TRUE(read.node_of.empty());
  EXPECT_EQ(read.links, (std::vector(machine.links.begin(), machine.links.begin() + 2)));
}

}  // namespace
}  // namespace equitile

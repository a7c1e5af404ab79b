#include "equitile/io/records/trace_file.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "equitile/io/json_value.h"

namespace equitile {
namespace {

TEST(TraceFileTest, EventsParseNestAndNameTheirRanks) {
  const std::vector<TraceEvent> events = {
      {.name = "compute", .rank = 1, .begin = 0.5, .end = 0.75, .is_transfer = false, .args = {}},
      {.name = "send",
       .rank = 0,
       .begin = 0.1,
       .end = 0.9,
       .is_transfer = true,
       .args = {{"bytes", 4096}, {"stage", 2}}},
      {.name = "wait", .rank = 0, .begin = 0.0, .end = 0.25, .is_transfer = false, .args = {}},
      {.name = "receive", .rank = 0, .begin = 0.2, .end = 1.0, .is_transfer = true, .args = {}}};
  const Json json = ParseJson(TraceFileText(events), "trace");
  std::set<int64_t> ranks;
  std::map<int64_t, std::vector<double>> transfers;  // by id: begin, end
  int64_t spans = 0;
  for (const Json& event : json["traceEvents"]) {
    ranks.insert(event["pid"].get<int64_t>());
    if (event["ph"] == "M") continue;
    EXPECT_GE(event["ts"].get<double>(), 0);
    if (event["ph"] == "X") {
      ++spans;
      EXPECT_GE(event["dur"].get<double>(), 0);
    } else {
      transfers[event["id"].get<int64_t>()].push_back(event["ts"].get<double>());
    }
    if (event["name"] == "send") {
      EXPECT_EQ(event["args"]["bytes"], 4096);
      EXPECT_EQ(event["args"]["stage"], 2);
    }
  }
  EXPECT_EQ(ranks, (std::set<int64_t>{0, 1}));
  EXPECT_EQ(spans, 2);
  ASSERT_EQ(transfers.size(), 2u);
  EXPECT_EQ(transfers[0], (std::vector<double>{0.1e6, 0.9e6}));
  for (const auto& [id, times] : transfers) {
    ASSERT_EQ(times.size(), 2u) << id;
    EXPECT_LE(times[0], times[1]);
  }
}

TEST(TraceFileTest, NothingIsStillATrace) {
  EXPECT_TRUE(ParseJson(TraceFileText({}), "trace")["traceEvents"].empty());
}

}  // namespace
}  // namespace equitile

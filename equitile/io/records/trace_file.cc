#include "equitile/io/records/trace_file.h"

#include <algorithm>

#include "equitile/io/json_value.h"

namespace equitile {
namespace {

constexpr double kMicroseconds = 1e6;

Json Event(const TraceEvent& event, const char* phase, double seconds) {
  Json json = {{"name", event.name}, {"cat", event.is_transfer ? "transfer" : "rank"},
               {"ph", phase},        {"ts", seconds * kMicroseconds},
               {"pid", event.rank},  {"tid", 0}};
  for (const auto& [key, value] : event.args) json["args"][key] = value;
  return json;
}

}  // namespace

std::string TraceFileText(std::span<const TraceEvent> events) {
  std::vector<const TraceEvent*> sorted;
  for (const TraceEvent& event : events) sorted.push_back(&event);
  std::stable_sort(sorted.begin(), sorted.end(), [](const TraceEvent* a, const TraceEvent* b) {
    if (a->rank != b->rank) return a->rank < b->rank;
    if (a->begin != b->begin) return a->begin < b->begin;
    return a->end > b->end;  // what holds others first
  });
  // One line per event: files are searched and compared.
  std::string text = "{\"traceEvents\": [";
  const char* separator = "\n";
  auto add = [&](const Json& json) {
    text += separator + JsonText(json);
    separator = ",\n";
  };
  int64_t id = 0;
  int32_t rank = -1;
  for (const TraceEvent* event : sorted) {
    if (event->rank != rank) {
      rank = event->rank;
      add({{"name", "process_name"},
           {"ph", "M"},
           {"pid", rank},
           {"args", {{"name", fmt::format("rank {}", rank)}}}});
    }
    if (event->is_transfer) {
      for (const bool begins : {true, false}) {
        Json json = Event(*event, begins ? "b" : "e", begins ? event->begin : event->end);
        json["id"] = id;
        add(json);
      }
      ++id;
    } else {
      Json json = Event(*event, "X", event->begin);
      json["dur"] = (event->end - event->begin) * kMicroseconds;
      add(json);
    }
  }
  return text + "\n], \"displayTimeUnit\": \"ms\"}\n";
}

void WriteTraceFile(const std::filesystem::path& path, std::span<const TraceEvent> events) {
  WriteTextFile(path, TraceFileText(events));
}

}  // namespace equitile

// Timelines of ranks as Chrome trace events: JSON that Perfetto and chrome://tracing open.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace equitile {

struct TraceEvent {
  std::string name;           // "compute", "wait", "send"
  int32_t rank = 0;           // shown as a process
  double begin = 0, end = 0;  // seconds, not negative
  // Spans of a rank's own thread nest; transfers overlap each other and everything else.
  bool is_transfer = false;
  std::vector<std::pair<std::string, int64_t>> args;
};

// {"traceEvents": [...]}: complete events ("X") for spans, pairs of asynchronous ones ("b", "e")
// for transfers; microseconds.
std::string TraceFileText(std::span<const TraceEvent> events);
void WriteTraceFile(const std::filesystem::path& path, std::span<const TraceEvent> events);

}  // namespace equitile

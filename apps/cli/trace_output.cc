#include "apps/cli/trace_output.h"

#include "equitile/io/records/trace_file.h"

namespace equitile {
namespace {

const char* Name(RunEvent::Kind kind) {
  switch (kind) {
    case RunEvent::Kind::kPlan:
      return "plan";
    case RunEvent::Kind::kPack:
      return "pack";
    case RunEvent::Kind::kCompute:
      return "compute";
    case RunEvent::Kind::kWait:
      return "wait";
    case RunEvent::Kind::kSend:
      return "send";
    case RunEvent::Kind::kReceive:
      return "receive";
    case RunEvent::Kind::kLoad:
      return "load";
    case RunEvent::Kind::kText:
      return "text";
    case RunEvent::Kind::kLinear:
      return "linear";
    case RunEvent::Kind::kNorm:
      return "norm";
    case RunEvent::Kind::kTextAttention:
      return "text attention";
    case RunEvent::Kind::kExchange:
      return "exchange";
    case RunEvent::Kind::kSample:
      return "sample";
    case RunEvent::Kind::kDecode:
      return "decode";
    case RunEvent::Kind::kWrite:
      return "write";
  }
  return "";
}

TraceEvent ToEvent(const TraceSpan& span, int32_t rank) {
  const RunEvent& event = span.event;
  TraceEvent out{
      .name = Name(event.kind),
      .rank = rank,
      .begin = event.begin,
      .end = event.end,
      .is_transfer = event.kind == RunEvent::Kind::kSend || event.kind == RunEvent::Kind::kReceive,
      .args = {}};
  auto add = [&](const char* key, int64_t value) {
    if (value >= 0) out.args.emplace_back(key, value);
  };
  add("step", span.step);
  add("layer", span.layer);
  add("stage", event.stage);
  add("head_group", event.head_group);
  if (out.is_transfer) {
    add("peer", event.peer);
    add("bytes", event.bytes);
  }
  return out;
}

}  // namespace

CLI::Option* AddTrace(CLI::App& app, std::string& path) {
  return app
      .add_option("--trace", path,
                  "write what every rank did and when here, as Chrome trace events (Perfetto)")
      ->type_name("FILE");
}

void WriteTrace(const std::string& path, Communicator& comm, const Trace& trace) {
  const auto ranks = trace.Gather();
  if (comm.rank() != 0) return;
  std::vector<TraceEvent> events;
  for (int32_t rank = 0; rank < comm.size(); ++rank) {
    for (const TraceSpan& span : ranks[static_cast<size_t>(rank)])
      events.push_back(ToEvent(span, rank));
  }
  WriteTraceFile(path, events);
}

}  // namespace equitile

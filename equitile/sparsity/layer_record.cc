#include "equitile/sparsity/layer_record.h"

#include <cstddef>

#include "equitile/io/json_value.h"

namespace equitile {
namespace {

// visit(name, member) for every member that is one value.
template <typename Record, typename Visit>
void VisitMembers(Record& record, const Visit& visit) {
  visit("step", record.step);
  visit("layer", record.layer);
  visit("sigma", record.sigma);
  visit("density", record.density);
  visit("mass_held", record.mass_held);
  visit("planner", record.planner);
  visit("rho_before", record.rho_before);
  visit("rho_after", record.rho_after);
  visit("plan_made", record.plan_made);
  visit("mask_seconds", record.mask_seconds);
  visit("plan_seconds", record.plan_seconds);
  visit("mask_bytes_sent", record.mask_bytes_sent);
  visit("watch_seconds", record.watch_seconds);
  visit("seconds", record.run.seconds);
  visit("compute_seconds", record.run.compute_seconds);
  visit("pack_seconds", record.run.pack_seconds);
  visit("wait_seconds", record.run.wait_seconds);
  visit("bytes_sent", record.run.bytes_sent);
  visit("bytes_received", record.run.bytes_received);
  visit("buffer_bytes", record.run.buffer_bytes);
  visit("allocated_bytes", record.run.allocated_bytes);
}

void Read(const JsonValue& from, double& to) { to = from.Number(-1e300, 1e300); }
void Read(const JsonValue& from, bool& to) { to = from.Bool(); }
void Read(const JsonValue& from, std::string& to) { to = from.Text(); }
void Read(const JsonValue& from, int64_t& to) { to = from.Integer(0, INT64_MAX); }
void Read(const JsonValue& from, int32_t& to) {
  to = static_cast<int32_t>(from.Integer(0, INT32_MAX));
}
void Read(const JsonValue& from, std::vector<double>& to) {
  to.resize(static_cast<size_t>(from.Size()));
  for (size_t i = 0; i < to.size(); ++i) Read(from.At(static_cast<int64_t>(i)), to[i]);
}

}  // namespace

std::string LayerRecordsText(std::span<const LayerRecord> records) {
  Json columns = Json::object();
  for (const LayerRecord& record : records) {
    VisitMembers(record,
                 [&](const char* name, const auto& member) { columns[name].push_back(member); });
  }
  return JsonText(columns);
}

std::vector<LayerRecord> ParseLayerRecords(std::string_view text) {
  constexpr std::string_view kWhere = "the checkpoint's records of layers";
  const Json document = ParseJson(text, kWhere);
  const JsonValue columns(document, kWhere);
  std::vector<LayerRecord> records;
  if (const auto steps = columns.Find("step")) records.resize(static_cast<size_t>(steps->Size()));
  for (size_t i = 0; i < records.size(); ++i) {
    VisitMembers(records[i], [&](const char* name, auto& member) {
      const JsonValue column = columns[name];
      column.Size(std::ssize(records));
      Read(column.At(static_cast<int64_t>(i)), member);
    });
  }
  return records;
}

}  // namespace equitile

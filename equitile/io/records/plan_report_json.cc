#include "equitile/io/records/plan_report_json.h"

#include <algorithm>

#include "equitile/pattern/mask_hash.h"

namespace equitile {
namespace {

Json Optional(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

// One list where all groups agree, else one per group.
Json PerGroup(const std::vector<std::vector<int32_t>>& groups) {
  const bool alike = std::all_of(groups.begin(), groups.end(), [&](const auto& group) {
    return group.empty() || group == groups.front();
  });
  return alike ? Json(groups.front()) : Json(groups);
}

void AddDetails(const Plan& plan, Json& json) {
  if (plan.movement() == Movement::kRing) {
    const RingOwners owners = OwnersOf(plan);
    json["head_perm"] = owners.head_perm;
    json["q_owner"] = PerGroup(owners.q_owner);
    json["kv_owner"] = PerGroup(owners.kv_owner);
  }
  json["row_owner"] = Json::array();
  for (int64_t lane = 0; lane < plan.problem().lanes.Count(); ++lane)
    json["row_owner"].push_back(plan.RowOwners(lane));
}

Json MaskJson(const MaskReport& report) {
  const BlockMask& mask = report.mask;
  return {{"source", report.source},          {"batch", mask.lanes().batch},
          {"heads", mask.lanes().heads},      {"q_blocks", mask.QBlocks()},
          {"kv_blocks", mask.KvBlocks()},     {"block", mask.grid().block_tokens},
          {"q_tokens", mask.grid().q_tokens}, {"kv_tokens", mask.grid().kv_tokens},
          {"kept_blocks", mask.Kept()},       {"density", mask.Density()},
          {"hash", HashText(HashMask(mask))}};
}

Json LinkJson(const Link& link) {
  return {{"latency_seconds", link.latency_seconds}, {"bytes_per_second", link.bytes_per_second}};
}

}  // namespace

Json ClusterJson(const Cluster& cluster) {
  Json json = {{"gflops", cluster.gflops},           {"row_seconds", cluster.row_seconds},
               {"head_dim", cluster.wire.head_dim},  {"q_bytes", cluster.wire.QBytes()},
               {"out_bytes", cluster.wire.OBytes()}, {"link", LinkJson(cluster.link)}};
  if (!cluster.node_of.empty()) {
    json["node_of"] = cluster.node_of;
    json["node_link"] = LinkJson(cluster.node_link);
    if (cluster.HasCables()) json["cable_bytes_per_second"] = cluster.cable_bytes_per_second;
  }
  if (!cluster.speeds.empty()) json["speeds"] = cluster.speeds;
  return json;
}

Json PlanReportJson(const PlanReport& report, bool details) {
  Json json = {{"planner", report.planner},
               {"rho", report.rho},
               {"rho_paper", report.rho_paper},
               {"bound", report.bound},
               {"bound_any", report.bound_any},
               {"moved_q_blocks", Optional(report.moved.q_blocks)},
               {"moved_kv_blocks", Optional(report.moved.kv_blocks)},
               {"bytes_max", report.bytes_max},
               {"bytes_mean", report.bytes_mean},
               {"messages", report.messages},
               {"buffer_bytes_max", report.buffer_bytes_max},
               {"predicted_seconds", report.prediction.seconds},
               {"predicted_compute", report.prediction.compute},
               {"predicted_exchange", report.prediction.exchange},
               {"predicted_pack", report.prediction.pack},
               {"predicted_wait", report.prediction.wait},
               {"paper_seconds", report.paper_seconds},
               {"plan_seconds", report.plan_seconds},
               {"hash", HashText(report.plan.hash())},
               {"work_per_rank", report.work_per_rank}};
  if (report.donated) {
    json["donated_rows"] = report.donated->rows;
    json["split_lanes"] = report.donated->split_lanes;
  }
  if (!report.chosen.empty()) json["chosen"] = report.chosen;
  if (details) AddDetails(report.plan, json);
  return json;
}

Json MaskReportJson(const MaskReport& report, const PlanOptions& options, bool details) {
  Json json = Json::object();
  if (report.layer) json["layer"] = *report.layer;
  json["mask"] = MaskJson(report);
  json["ranks"] = options.ranks;
  json["plans"] = Json::array();
  for (const PlanReport& plan : report.plans)
    json["plans"].push_back(PlanReportJson(plan, details));
  json["cost"] = {{"block", options.cost.block}, {"row", options.cost.row}};
  json["cluster"] = ClusterJson(options.cluster);
  return json;
}

std::vector<PlannerSummary> SummarizeLayers(const std::vector<MaskReport>& layers) {
  std::vector<PlannerSummary> summaries;
  for (const MaskReport& layer : layers) {
    for (const PlanReport& plan : layer.plans) {
      auto found = std::find_if(
          summaries.begin(), summaries.end(),
          [&](const PlannerSummary& summary) { return summary.planner == plan.planner; });
      if (found == summaries.end())
        found = summaries.insert(found, PlannerSummary{.planner = plan.planner});
      found->rho_mean += plan.rho / static_cast<double>(layers.size());
      found->rho_max = std::max(found->rho_max, plan.rho);
      found->bytes_max = std::max(found->bytes_max, plan.bytes_max);
      found->predicted_seconds += plan.prediction.seconds;
    }
  }
  std::stable_sort(summaries.begin(), summaries.end(),
                   [](const PlannerSummary& a, const PlannerSummary& b) {
                     return a.predicted_seconds < b.predicted_seconds;
                   });
  return summaries;
}

Json LayersReportJson(const std::vector<MaskReport>& layers, const PlanOptions& options,
                      bool details) {
  Json json = {{"layers", Json::array()}, {"summary", {{"plans", Json::array()}}}};
  for (const MaskReport& layer : layers)
    json["layers"].push_back(MaskReportJson(layer, options, details));
  for (const PlannerSummary& summary : SummarizeLayers(layers)) {
    json["summary"]["plans"].push_back({{"planner", summary.planner},
                                        {"rho_mean", summary.rho_mean},
                                        {"rho_max", summary.rho_max},
                                        {"bytes_max", summary.bytes_max},
                                        {"predicted_seconds", summary.predicted_seconds}});
  }
  return json;
}

}  // namespace equitile

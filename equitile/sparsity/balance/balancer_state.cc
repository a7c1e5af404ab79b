// What a Balancer has to remember between the steps of a run whose bits depend on its plans, as
// JSON: the plans in force with what keeping them is judged by, and what was decided so far.
#include <span>
#include <string_view>

#include "equitile/base/error.h"
#include "equitile/io/json_value.h"
#include "equitile/io/records/plan_file.h"
#include "equitile/sparsity/balance/balancer.h"

namespace equitile {
namespace {

constexpr const char* kName = "plans";  // of the part, in a SourceState
constexpr double kHuge = 1e300;

}  // namespace

SourceState Balancer::State() const {
  if (!options_.bits_depend_on_plans) return {};
  Json layers = Json::array();
  for (const auto& [index, layer] : layers_) {
    if (!layer.plan_is_set) continue;
    const PlanFile file =
        MakePlanFile(layer.plan, layer.made_for, options_.plan.cost,
                     std::vector<int64_t>(static_cast<size_t>(layer.plan.ranks())));
    layers.push_back({{"layer", index},
                      {"plan", PlanFileText(file)},
                      {"last_masks", HashText(layer.last_masks)},
                      {"rho_made", layer.rho_made},
                      {"rho_now", layer.rho_now},
                      {"lost_seconds", layer.lost_seconds},
                      {"blocks_chosen", layer.blocks_chosen},
                      {"attention_seconds", layer.attention_seconds},
                      {"planning_seconds", layer.planning_seconds},
                      {"comparing_seconds", layer.comparing_seconds}});
  }
  const std::string text = JsonText({{"decisions", decisions_.Text()},
                                     {"repeats", repeats_ ? Json(repeats_->Text()) : Json(nullptr)},
                                     {"layers", std::move(layers)}});
  const auto bytes = std::as_bytes(std::span(text));
  return {{kName, {bytes.begin(), bytes.end()}}};
}

void Balancer::Restore(const SourceState& state) {
  const auto found = state.find(kName);
  if (!options_.bits_depend_on_plans || found == state.end()) return;
  const std::string_view text(reinterpret_cast<const char*>(found->second.data()),
                              found->second.size());
  constexpr std::string_view kWhere = "the checkpoint's plans";
  const Json document = ParseJson(text, kWhere);
  const JsonValue root(document, kWhere);
  const int32_t ranks = options_.plan.ranks;
  Begin();
  decisions_ = PlanDecisions::Parse(root["decisions"].Text(), ranks);
  if (const auto repeats = root.Find("repeats"))
    repeats_ = PlanDecisions::Parse(repeats->Text(), ranks);
  const JsonValue layers = root["layers"];
  for (int64_t i = 0; i < layers.Size(); ++i) {
    const JsonValue stored = layers.At(i);
    const PlanFile file = ParsePlanFile(stored["plan"].Text(), kWhere);
    Layer& layer = layers_[static_cast<int32_t>(stored["layer"].Integer(0, INT32_MAX))];
    layer.plan = Plan(file.parts);
    if (layer.plan.ranks() != ranks)
      stored.Fail("is for {} ranks, here are {}", layer.plan.ranks(), ranks);
    layer.plan_is_set = true;
    layer.made_for = file.mask_hash;
    layer.last_masks = stored["last_masks"].Hash();
    layer.rho_made = stored["rho_made"].Number(0, kHuge);
    layer.rho_now = stored["rho_now"].Number(0, kHuge);
    layer.lost_seconds = stored["lost_seconds"].Number(0, kHuge);
    layer.blocks_chosen = stored["blocks_chosen"].Integer(0, INT64_MAX);
    layer.attention_seconds = stored["attention_seconds"].Number(0, kHuge);
    layer.planning_seconds = stored["planning_seconds"].Number(-kHuge, kHuge);
    layer.comparing_seconds = stored["comparing_seconds"].Number(-kHuge, kHuge);
  }
}

}  // namespace equitile

#include "apps/plan/plan_html.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "apps/plan/plan_html_template.h"
#include "equitile/base/base64.h"
#include "equitile/base/range.h"

namespace equitile {
namespace {

// Base64 makes four thirds of it; a layer of 40 heads and 512 x 512 blocks has 1.3 MB of bits.
constexpr size_t kMaskBytes = 3'000'000;
// More rows than this are no picture, and a ring of many ranks has as many stages as ranks.
constexpr int32_t kTimelineRanks = 64;

// Little-endian, two bytes each.
class Shorts {
 public:
  void Add(uint32_t value) {
    bytes_.push_back(static_cast<uint8_t>(value & 255));
    bytes_.push_back(static_cast<uint8_t>(value >> 8 & 255));
  }
  std::string Text() const { return Base64(bytes_); }

 private:
  std::vector<uint8_t> bytes_;
};

size_t MaskBytes(const BlockMask& mask) {
  return static_cast<size_t>(mask.LaneCount() * mask.QBlocks() * CeilDiv(mask.KvBlocks(), 8));
}

// [lanes][q_blocks][kv_blocks] bits, the lowest of a byte first; rows start at a byte.
std::string MaskText(const BlockMask& mask) {
  std::vector<uint8_t> bytes;
  bytes.reserve(MaskBytes(mask));
  for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
    for (int64_t row = 0; row < mask.QBlocks(); ++row) {
      const std::span<const uint64_t> words = mask.Row(lane, row);
      for (int64_t column = 0; column < mask.KvBlocks(); column += 8)
        bytes.push_back(
            static_cast<uint8_t>(words[static_cast<size_t>(column >> 6)] >> (column & 63) & 255));
    }
  }
  return Base64(bytes);
}

// [q_blocks] owners of one row map.
std::string OwnersText(const RowRuns& runs) {
  Shorts owners;
  int32_t row = 0;
  for (const RowRun& run : runs)
    for (; row < run.end; ++row) owners.Add(static_cast<uint32_t>(run.rank));
  return owners.Text();
}

// Of every rank shown, as parts of the plan's seconds in 1/65535: per stage where exchange,
// computing and its end are, then where the exchange after the last stage begins and ends.
Json TimelineJson(const Prediction& prediction, int32_t ranks, int32_t stages) {
  const auto part = [&](double seconds) {
    const double all = prediction.seconds > 0 ? prediction.seconds : 1;
    return static_cast<uint32_t>(std::lround(std::clamp(seconds / all, 0.0, 1.0) * 65535));
  };
  Json shown = Json::array();
  Shorts times;
  const int32_t rows = std::min(ranks, kTimelineRanks);
  for (int32_t i = 0; i < rows; ++i) {
    const int64_t rank = int64_t{i} * ranks / rows;
    shown.push_back(rank);
    for (int32_t stage = 0; stage < stages; ++stage) {
      const StageTimes& now = prediction.timeline[static_cast<size_t>(rank * stages + stage)];
      times.Add(part(now.begin - now.exchange));
      times.Add(part(now.begin));
      times.Add(part(now.end));
    }
    const HomeTimes& home = prediction.home[static_cast<size_t>(rank)];
    times.Add(part(home.exchange));
    times.Add(part(home.done));
  }
  return {{"ranks", std::move(shown)}, {"stages", stages}, {"times", times.Text()}};
}

void AddPicture(const PlanReport& report, Json& json) {
  const PlanParts& parts = report.plan.parts();
  json["row_maps"] = Json::array();
  for (const RowRuns& runs : parts.row_maps) json["row_maps"].push_back(OwnersText(runs));
  json["map_of_lane"] = parts.map_of_lane;
  const int32_t ranks = report.plan.ranks();
  const int32_t stages = static_cast<int32_t>(std::ssize(report.prediction.timeline)) / ranks;
  json["timeline"] = TimelineJson(report.prediction, ranks, stages);
}

Json LayerJson(const MaskReport& layer, const PlanOptions& options, bool with_mask) {
  Json json = MaskReportJson(layer, options, /*details=*/false);
  json["why"] = WhyBest(layer.plans, 0);
  json["bits"] = with_mask ? Json(MaskText(layer.mask)) : Json(nullptr);
  for (size_t i = 0; i < layer.plans.size(); ++i) AddPicture(layer.plans[i], json["plans"][i]);
  return json;
}

// No '<', so that no name can end the script it stands in; bytes that are no UTF-8 are replaced.
std::string ScriptText(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string safe;
  safe.reserve(text.size());
  for (char c : text) {
    if (c == '<')
      safe += "\\u003c";
    else
      safe += c;
  }
  return safe;
}

}  // namespace

std::string PlanPage(const std::vector<MaskReport>& layers, const PlanOptions& options) {
  Json data = {{"layers", Json::array()}};
  size_t mask_bytes = 0;
  for (const MaskReport& layer : layers) {
    mask_bytes += MaskBytes(layer.mask);
    const bool with_mask = &layer == &layers.front() || mask_bytes <= kMaskBytes;
    data["layers"].push_back(LayerJson(layer, options, with_mask));
  }
  return kPlanPageHead + ScriptText(data) + kPlanPageTail;
}

}  // namespace equitile

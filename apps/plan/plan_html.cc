#include "apps/plan/plan_html.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <span>

#include "apps/cli/html.h"
#include "apps/cli/page_style.h"
#include "apps/plan/plan_html_template.h"
#include "equitile/base/base64.h"
#include "equitile/base/range.h"

namespace equitile {
namespace {

// Bits of masks in a page, of which base64 makes four thirds: a layer of 40 heads and 512 x 512
// blocks still fits. A larger one is shown in cells of several blocks that fit into less, so that
// the page, whose owners of rows grow too, stays below 2 MB.
constexpr size_t kMaskBytes = 1'350'000, kCellBytes = 900'000;
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

// In cells of `cell` x `cell` blocks.
size_t MaskBytes(const BlockMask& mask, int64_t cell) {
  return static_cast<size_t>(mask.LaneCount() * CeilDiv(mask.QBlocks(), cell) *
                             CeilDiv(CeilDiv(mask.KvBlocks(), cell), 8));
}

int64_t CellOf(const BlockMask& mask) {
  if (MaskBytes(mask, 1) <= kMaskBytes) return 1;
  int64_t cell = 2;
  while (MaskBytes(mask, cell) > kCellBytes) ++cell;
  return cell;
}

// Kept blocks of the cell, of all that it has.
bool CellIsKept(const BlockMask& mask, int64_t lane, int64_t row, int64_t column, int64_t cell) {
  int64_t kept = 0, all = 0;
  for (int64_t q = row * cell; q < std::min((row + 1) * cell, mask.QBlocks()); ++q) {
    for (int64_t k = column * cell; k < std::min((column + 1) * cell, mask.KvBlocks()); ++k, ++all)
      kept += mask.Get(lane, q, k) ? 1 : 0;
  }
  // A dither, so that a dense region looks denser than a sparse one.
  constexpr int64_t kThreshold[2][2] = {{1, 5}, {7, 3}};  // eighths
  return 8 * kept >= kThreshold[row % 2][column % 2] * all && kept > 0;
}

// [lanes][rows of cells][columns of cells] bits, the lowest of a byte first; rows start at a byte.
std::string MaskText(const BlockMask& mask, int64_t cell) {
  std::vector<uint8_t> bytes;
  bytes.reserve(MaskBytes(mask, cell));
  const int64_t rows = CeilDiv(mask.QBlocks(), cell), columns = CeilDiv(mask.KvBlocks(), cell);
  for (int64_t lane = 0; lane < mask.LaneCount(); ++lane) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        if (column % 8 == 0) bytes.push_back(0);
        if (CellIsKept(mask, lane, row, column, cell))
          bytes.back() |= static_cast<uint8_t>(1 << column % 8);
      }
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

// A page travels: folders of this machine mean nothing elsewhere. Of "profile,file=a/b.npy,step=25"
// too only what is a path goes.
std::string WithoutFolders(const std::string& source) {
  const std::string key = ",file=";
  const size_t found = source.starts_with("profile,") ? source.find(key) : std::string::npos;
  const size_t begin = found == std::string::npos ? 0 : found + key.size();
  const size_t end = found == std::string::npos ? source.size()
                                                : std::min(source.find(',', begin), source.size());
  const std::string name =
      std::filesystem::path(source.substr(begin, end - begin)).filename().string();
  return source.substr(0, begin) + name + source.substr(end);
}

Json LayerJson(const MaskReport& layer, const PlanOptions& options, bool with_mask) {
  Json json = MaskReportJson(layer, options, /*details=*/false);
  json["mask"]["source"] = WithoutFolders(layer.source);
  json["why"] = WhyBest(layer.plans, 0);
  const int64_t cell = CellOf(layer.mask);
  json["cell"] = cell;
  json["bits"] = with_mask ? Json(MaskText(layer.mask, cell)) : Json(nullptr);
  for (size_t i = 0; i < layer.plans.size(); ++i) AddPicture(layer.plans[i], json["plans"][i]);
  return json;
}

}  // namespace

std::string PlanPage(const std::vector<MaskReport>& layers, const PlanOptions& options) {
  Json data = {{"layers", Json::array()}};
  size_t mask_bytes = 0;
  for (const MaskReport& layer : layers) {
    mask_bytes += MaskBytes(layer.mask, CellOf(layer.mask));
    const bool with_mask = &layer == &layers.front() || mask_bytes <= kMaskBytes;
    data["layers"].push_back(LayerJson(layer, options, with_mask));
  }
  return PageHead("plan") + kPlanPageBody + ScriptText(data) + kPlanPageTail;
}

}  // namespace equitile

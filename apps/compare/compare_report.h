// What `equitile compare --prompts` has seen: PSNR, SSIM and speed of every side beside the first.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/compare/compare_side.h"
#include "equitile/generate/video_maker.h"
#include "equitile/io/json_value.h"
#include "equitile/quality/video_comparison.h"

namespace equitile {

struct ReportFiles {
  std::filesystem::path frames = {};  // frames go to FOLDER/SIDE/PROMPT/%05d.png; empty: nowhere
  std::filesystem::path html = {};    // a page of all videos, which are kept beside it; empty: none
  bool json = false;                  // Print gives JSON
};

// Where the videos of a page are kept.
std::filesystem::path VideosOf(const std::filesystem::path& html);

// Rank 0's; one video at a time, in any order.
class CompareReport {
 public:
  // Sides must outlive it.
  CompareReport(const std::vector<CompareSide>& sides, ReportFiles files);

  // The video of one side; compared as soon as that of the first side is there too.
  void Add(const CompareSide& side, size_t task, MadeVideo video);

  // Prints, and writes the page.
  void Finish() const;

 private:
  // One side beside the first.
  struct Comparison {
    const CompareSide* side;
    std::vector<double> psnrs, ssims, speeds;  // psnrs: of prompts with frames that differ
    Json prompts = Json::array();
    std::vector<VideoComparison> videos = {};  // for a page
  };

  void Compare(Comparison& comparison, size_t task, const MadeVideo& b);
  void SaveFrames(const CompareSide& side, size_t task, const MadeVideo& video) const;
  Json ToJson(const Comparison& comparison) const;
  std::vector<std::pair<std::string, std::string>> Words(const Comparison& comparison) const;
  std::string VideoName(const CompareSide& side, size_t task) const;
  void KeepVideo(const CompareSide& side, size_t task, const MadeVideo& video) const;
  void Print() const;
  void WritePage() const;

  const std::vector<CompareSide>& sides_;
  ReportFiles files_;
  std::vector<std::optional<MadeVideo>> made_;  // of the task under way, by side
  std::vector<Comparison> comparisons_;         // sides 1, 2, ...
};

}  // namespace equitile

// What `equitile compare --prompts` has seen: PSNR, SSIM and speed of every side beside the first.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "apps/compare/compare_side.h"
#include "equitile/generate/video_maker.h"
#include "equitile/io/json_value.h"

namespace equitile {

// Rank 0's; one video at a time, in any order.
class CompareReport {
 public:
  // Frames also go to `frames_folder`/SIDE/PROMPT/%05d.png; empty: nowhere. Sides must outlive it.
  CompareReport(const std::vector<CompareSide>& sides, std::filesystem::path frames_folder,
                bool json);

  // The video of one side; compared as soon as that of the first side is there too.
  void Add(const CompareSide& side, size_t task, MadeVideo video);

  void Print() const;

 private:
  // One side beside the first.
  struct Comparison {
    const CompareSide* side;
    std::vector<double> psnrs, ssims, speeds;  // psnrs: of prompts with frames that differ
    Json prompts = Json::array();
  };

  void Compare(Comparison& comparison, size_t task, const MadeVideo& b);
  void SaveFrames(const CompareSide& side, size_t task, const MadeVideo& video) const;
  Json ToJson(const Comparison& comparison) const;
  void PrintWords(const Comparison& comparison) const;

  const std::vector<CompareSide>& sides_;
  std::filesystem::path frames_folder_;
  bool json_;
  std::vector<std::optional<MadeVideo>> made_;  // of the task under way, by side
  std::vector<Comparison> comparisons_;         // sides 1, 2, ...
};

}  // namespace equitile

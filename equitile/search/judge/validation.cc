#include "equitile/search/judge/validation.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "equitile/generate/agreement.h"
#include "equitile/generate/memory_estimate.h"
#include "equitile/generate/video_maker.h"
#include "equitile/quality/video_comparison.h"
#include "equitile/search/state/checkpoint_numbers.h"
#include "equitile/search/state/later_stages.h"

namespace equitile {
namespace {

GenerateRequest DenseRequest(const ValidationJob& job) {
  GenerateRequest request = job.request;
  request.tasks = job.tasks;
  return request;
}

GenerateRequest SparseRequest(const ValidationJob& job, const PatternFile& file) {
  GenerateRequest request = DenseRequest(job);
  request.sparsity.attention = ParseAttention("pattern");
  request.sparsity.warm_up.dense_steps = job.dense_steps;
  request.sparsity.pattern = std::make_shared<PatternFile>(file);
  return request;
}

// A video's first frames differ least: from the middle on.
std::vector<FrameSample> FramesToShow(const MadeVideo& dense, const MadeVideo& sparse) {
  std::vector<FrameSample> pairs;
  const auto frames = std::ssize(dense.frames);
  for (const int64_t sixth : {1, 3, 5}) {
    const int64_t frame = sixth * frames / 6;
    const auto f = static_cast<size_t>(frame);
    pairs.push_back({frame, dense.frames[f], sparse.frames[f]});
  }
  return pairs;
}

void Append(ValidationResult of_task, ValidationResult& result) {
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  if (result.psnr.empty()) result.frames = std::move(of_task.frames);
  append(result.psnr, of_task.psnr);
  append(result.ssim, of_task.ssim);
  append(result.density, of_task.density);
  append(result.speed, of_task.speed);
}

void Add(const MadeVideo& dense, const MadeVideo& sparse, ValidationResult& result) {
  VideoComparison comparison;
  for (size_t f = 0; f < dense.frames.size(); ++f)
    comparison.Add(dense.frames[f], sparse.frames[f]);
  if (result.psnr.empty()) result.frames = FramesToShow(dense, sparse);
  result.psnr.push_back(comparison.PsnrMean());
  result.ssim.push_back(comparison.SsimMean());
  result.density.push_back(sparse.sparsity["density"].get<double>());
  result.speed.push_back(dense.seconds / sparse.seconds);
}

// One for the dense request, then one for each file; they share their weights.
class Makers {
 public:
  Makers(const ValidationJob& job, std::span<const PatternFile> files, Communicator& comm,
         ThreadPool& pool, const SearchTools& tools)
      : job_(job), comm_(comm), tools_(tools) {
    requests_.push_back(DenseRequest(job));
    for (const PatternFile& file : files) requests_.push_back(SparseRequest(job, file));
    const WeightType weights = AgreeOnWeights(
        comm, Leads() ? ChooseWeights(job.request, tools.listener.remark) : WeightType::kF32);
    for (const GenerateRequest& request : requests_) {
      PipelineOptions options = PipelineOptionsOf(request, weights);
      options.parts = job.parts;
      makers_.push_back(std::make_unique<VideoMaker>(request, std::move(options), comm, pool,
                                                     [this](std::string_view line) { Say(line); }));
      makers_.back()->Prepare();
    }
  }

  bool Leads() const { return comm_.rank() == 0; }
  bool Stops() const {
    uint64_t stops = tools_.stop_requested && tools_.stop_requested() ? 1 : 0;
    comm_.AllReduce(std::span(&stops, 1), Reduce::kMax);
    return stops != 0;
  }
  MadeVideo Make(size_t maker, size_t task) {
    task_ = task;
    maker_ = maker;
    return makers_[maker]->Make(task);
  }

 private:
  void Say(std::string_view line) const {
    if (!Leads()) return;
    tools_.listener.progress(fmt::format(
        "{}, video {}/{}: {}{}", job_.doing, task_ * makers_.size() + maker_ + 1,
        makers_.size() * job_.tasks.size(), line, EtaText(job_.seconds_left(DonePart()))));
  }

  // Of all videos, before the one under way.
  double DonePart() const {
    const auto dense_ones = [](size_t makers) {
      return makers == 0 ? 0 : 1 + kSparsePart * static_cast<double>(makers - 1);
    };
    const double of_task = dense_ones(maker_) / dense_ones(makers_.size());
    return (static_cast<double>(task_) + of_task) / static_cast<double>(job_.tasks.size());
  }

  const ValidationJob& job_;
  Communicator& comm_;
  const SearchTools& tools_;
  std::vector<GenerateRequest> requests_;  // all there before a maker looks at one
  std::vector<std::unique_ptr<VideoMaker>> makers_;
  size_t task_ = 0, maker_ = 0;  // under way
};

}  // namespace

double ValidationResult::MeanPsnr(size_t begin, size_t end) const {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += psnr[i].value_or(100);
  return sum / static_cast<double>(end - begin);
}

void ValidationResult::AddTo(SourceState& parts, const std::string& prefix) const {
  std::vector<double> numbers;  // [tasks][PSNR, SSIM, density, speed]
  for (size_t i = 0; i < psnr.size(); ++i) {
    const double identical = std::numeric_limits<double>::infinity();
    for (const double number : {psnr[i].value_or(identical), ssim[i], density[i], speed[i]})
      numbers.push_back(number);
  }
  PutNumbers(numbers, parts[prefix + "videos"]);
  std::vector<int64_t> shown;  // [samples][frame, height, width]
  std::vector<uint8_t> pixels;
  for (const FrameSample& sample : frames) {
    for (const int64_t number : {sample.frame, sample.dense.height, sample.dense.width})
      shown.push_back(number);
    for (const RgbImage* image : {&sample.dense, &sample.sparse})
      pixels.insert(pixels.end(), image->pixels.begin(), image->pixels.end());
  }
  PutNumbers(shown, parts[prefix + "frames"]);
  PutNumbers(pixels, parts[prefix + "pixels"]);
}

ValidationResult ValidationResult::From(const SourceState& parts, const std::string& prefix) {
  ValidationResult result;
  const auto numbers = TakeNumbers<double>(parts, prefix + "videos");
  for (size_t i = 0; i + 4 <= numbers.size(); i += 4) {
    result.psnr.push_back(std::isinf(numbers[i]) ? std::nullopt : std::optional(numbers[i]));
    result.ssim.push_back(numbers[i + 1]);
    result.density.push_back(numbers[i + 2]);
    result.speed.push_back(numbers[i + 3]);
  }
  const auto shown = TakeNumbers<int64_t>(parts, prefix + "frames");
  const auto pixels = TakeNumbers<uint8_t>(parts, prefix + "pixels");
  auto next = pixels.begin();
  for (size_t i = 0; i + 3 <= shown.size(); i += 3) {
    FrameSample& sample = result.frames.emplace_back();
    sample.frame = shown[i];
    for (RgbImage* image : {&sample.dense, &sample.sparse}) {
      const int64_t bytes = 3 * shown[i + 1] * shown[i + 2];
      if (bytes < 0 || bytes > pixels.end() - next)
        throw InputError("[search] the checkpoint's '{}pixels' are of other frames", prefix);
      *image = {.height = shown[i + 1], .width = shown[i + 2], .pixels = {next, next + bytes}};
      next += bytes;
    }
  }
  return result;
}

std::string WhyNotTrusted(const ValidationResult& result, size_t own_videos) {
  constexpr double kWellBelow = 2.0;  // dB
  const size_t all = result.psnr.size();
  if (own_videos == 0 || own_videos >= all) return "";
  const double below =
      result.MeanPsnr(all - own_videos, all) - result.MeanPsnr(0, all - own_videos);
  if (below <= kWellBelow) return "";
  return fmt::format(
      "other prompts come out {:.1f} dB below those that it was calibrated on; calibrate on more "
      "of them, and more unlike each other",
      below);
}

bool Validate(const ValidationJob& job, std::span<const PatternFile> files, Communicator& comm,
              ThreadPool& pool, const SearchTools& tools, std::vector<ValidationResult>& results) {
  results.resize(files.size());
  uint64_t first = results.front().psnr.size();
  comm.Broadcast(std::as_writable_bytes(std::span(&first, 1)), 0);
  if (first >= job.tasks.size()) return true;
  Makers makers(job, files, comm, pool, tools);
  for (size_t task = first; task < job.tasks.size(); ++task) {
    if (makers.Stops()) return false;
    const MadeVideo dense = makers.Make(0, task);
    std::vector<ValidationResult> of_task(files.size());
    for (size_t i = 0; i < files.size(); ++i) {
      if (makers.Stops()) return false;
      const MadeVideo sparse = makers.Make(i + 1, task);
      if (makers.Leads()) Add(dense, sparse, of_task[i]);
    }
    for (size_t i = 0; i < files.size(); ++i) Append(std::move(of_task[i]), results[i]);
    job.task_done();
  }
  return true;
}

}  // namespace equitile

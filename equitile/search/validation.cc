#include "equitile/search/validation.h"

#include <fmt/format.h>

#include <utility>

#include "equitile/generate/agreement.h"
#include "equitile/generate/memory_estimate.h"
#include "equitile/generate/video_maker.h"
#include "equitile/quality/video_comparison.h"

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
    video_ = task * makers_.size() + maker;
    return makers_[maker]->Make(task);
  }

 private:
  void Say(std::string_view line) const {
    if (!Leads()) return;
    tools_.listener.progress(fmt::format("{}, video {}/{}: {}", job_.doing, video_ + 1,
                                         makers_.size() * job_.tasks.size(), line));
  }

  const ValidationJob& job_;
  Communicator& comm_;
  const SearchTools& tools_;
  std::vector<GenerateRequest> requests_;  // all there before a maker looks at one
  std::vector<std::unique_ptr<VideoMaker>> makers_;
  size_t video_ = 0;
};

}  // namespace

double ValidationResult::MeanPsnr(size_t begin, size_t end) const {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += psnr[i].value_or(100);
  return sum / static_cast<double>(end - begin);
}

std::vector<ValidationResult> Validate(const ValidationJob& job, std::span<const PatternFile> files,
                                       Communicator& comm, ThreadPool& pool,
                                       const SearchTools& tools) {
  Makers makers(job, files, comm, pool, tools);
  std::vector<ValidationResult> results(files.size());
  for (size_t task = 0; task < job.tasks.size(); ++task) {
    if (makers.Stops()) return {};
    const MadeVideo dense = makers.Make(0, task);
    for (size_t i = 0; i < files.size(); ++i) {
      const MadeVideo sparse = makers.Make(i + 1, task);
      if (makers.Leads()) Add(dense, sparse, results[i]);
    }
  }
  return results;
}

}  // namespace equitile

#include "equitile/search/validation.h"

#include <fmt/format.h>

#include <utility>

#include "equitile/generate/agreement.h"
#include "equitile/generate/memory_estimate.h"
#include "equitile/generate/video_maker.h"
#include "equitile/quality/video_comparison.h"

namespace equitile {

double ValidationResult::MeanPsnr(size_t begin, size_t end) const {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += psnr[i].value_or(100);
  return sum / static_cast<double>(end - begin);
}

ValidationResult Validate(const GenerateRequest& request, std::vector<GenerateTask> tasks,
                          std::shared_ptr<const PatternFile> file, int64_t dense_steps,
                          Communicator& comm, ThreadPool& pool, const SearchTools& tools) {
  GenerateRequest dense = request;
  dense.tasks = std::move(tasks);
  GenerateRequest sparse = dense;
  sparse.sparsity.attention = ParseAttention("pattern");
  sparse.sparsity.warm_up.dense_steps = dense_steps;
  sparse.sparsity.pattern = std::move(file);
  const bool leads = comm.rank() == 0;
  const WeightType weights = AgreeOnWeights(
      comm, leads ? ChooseWeights(request, tools.listener.remark) : WeightType::kF32);
  size_t task = 0;
  const auto say = [&](std::string_view line) {
    if (leads) {
      tools.listener.progress(
          fmt::format("validating {}/{}: {}", task + 1, dense.tasks.size(), line));
    }
  };
  const auto parts = std::make_shared<LoadedParts>();
  const auto options_of = [&](const GenerateRequest& of) {
    PipelineOptions options = PipelineOptionsOf(of, weights);
    options.parts = parts;
    return options;
  };
  VideoMaker makes_dense(dense, options_of(dense), comm, pool, say);
  VideoMaker makes_sparse(sparse, options_of(sparse), comm, pool, say);
  makes_dense.Prepare();
  makes_sparse.Prepare();
  ValidationResult result;
  for (; task < dense.tasks.size(); ++task) {
    uint64_t stops = tools.stop_requested && tools.stop_requested() ? 1 : 0;
    comm.AllReduce(std::span(&stops, 1), Reduce::kMax);
    if (stops != 0) {
      result.interrupted = true;
      return result;
    }
    const MadeVideo a = makes_dense.Make(task), b = makes_sparse.Make(task);
    if (!leads) continue;
    VideoComparison comparison;
    for (size_t f = 0; f < a.frames.size(); ++f) comparison.Add(a.frames[f], b.frames[f]);
    result.psnr.push_back(comparison.PsnrMean());
    result.ssim.push_back(comparison.SsimMean());
    result.speed.push_back(a.seconds / b.seconds);
  }
  return result;
}

}  // namespace equitile

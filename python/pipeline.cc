#include "python/pipeline.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "equitile/base/checked_value.h"
#include "equitile/base/error.h"
#include "equitile/base/timer.h"
#include "equitile/base/topology.h"
#include "equitile/comm/solo/solo.h"
#include "equitile/generate/agreement.h"
#include "equitile/generate/compute_choice.h"
#include "equitile/generate/memory_estimate.h"
#include "equitile/generate/pipeline.h"
#include "equitile/generate/quality_preset.h"
#include "equitile/generate/request.h"
#include "equitile/generate/video_maker.h"
#include "equitile/io/records/settings_file.h"
#include "python/worker_threads.h"

namespace py = pybind11;

namespace equitile {
namespace {

// Where a video goes, how it is encoded, and where the model is, are not said by keyword.
bool IsKeyword(const RecipeField& field) {
  constexpr std::string_view kOthers[] = {"prompt", "output", "save_latents", "crf", "model"};
  return !field.flags.empty() &&
         std::find(std::begin(kOthers), std::end(kOthers), field.key) == std::end(kOthers);
}

constexpr const char* kQuality = "quality";  // stands for settings of the recipe

// [(key, help)]: the preset, then the recipe's in the order of its table.
py::list Keywords() {
  py::list list;
  list.append(py::make_tuple(kQuality, QualityHelp()));
  for (const RecipeField& field : RecipeFields()) {
    if (IsKeyword(field)) list.append(py::make_tuple(field.key, field.help));
  }
  return list;
}

// Python notes signals and acts on them only where it is asked. Whoever computes for long asks
// here, without the GIL.
class SignalWatch {
 public:
  explicit SignalWatch(ThreadPool& pool) : pool_(pool) {
    pool_.SetPoll([this] { Ask(); });
  }
  ~SignalWatch() { pool_.SetPoll(nullptr); }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  // Often enough for a hand on the keyboard, and too seldom for other Python threads to notice.
  static constexpr double kSeconds = 0.1;

  void Ask() {
    if (watch_.Seconds() < kSeconds) return;
    watch_.Restart();
    py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }

  ThreadPool& pool_;
  Stopwatch watch_;
};

class VideoPipeline {
 public:
  VideoPipeline(std::string model, int threads)
      : model_(std::move(model)), threads_(threads == 0 ? DefaultThreads() : threads) {
    if (threads < 0) throw InputError("[python] threads {}: must not be negative", threads);
    ReadWanConfig(CheckpointFolder(model_).Config("transformer"));  // throws where it is no model
  }

  // (frames [frames, height, width, 3], latents [channels, frames, height, width], recipe as JSON,
  // remarks)
  py::tuple Generate(const std::map<std::string, std::string>& settings,
                     const py::object& after_step) {
    const std::unique_lock lock(busy_, std::try_to_lock);
    if (!lock) throw Error("[python] this pipeline is making a video already; one at a time");
    const GenerateRequest request = RequestFor(settings);
    const bool is_loaded = parts_ && parts_->transformer;
    CheckMemory(request, 1, threads_,
                is_loaded ? std::ssize(parts_->transformer_bytes.bytes()) : 0);
    std::vector<std::string> remarks = request.remarks;
    // What is loaded takes memory that was free when its type was chosen: the choice stays.
    const bool is_chosen = is_loaded && !IsInteger(parts_weights_) &&
                           !request.recipe.IsSettled("weights") &&
                           ComputeOf(request.recipe).linear == Compute::kF32;
    const WeightType weights =
        is_chosen ? parts_weights_ : ChooseWeights(request, [&](std::string_view remark) {
          remarks.emplace_back(remark);
        });
    SoloCommunicator comm;
    Recipe recipe = ForTask(AgreeOnRequest(comm, request), request.tasks[0]);
    recipe.Settle("weights", WeightTypeName(weights));
    const GenerationConfig config = recipe.Config();
    py::array_t<uint8_t> frames({config.frames, config.height, config.width, int64_t{3}});
    py::array_t<float> latents({request.transformer.out_channels, config.LatentFrames(),
                                config.LatentHeight(), config.LatentWidth()});
    uint8_t* const pixels = frames.mutable_data();
    float* const values = latents.mutable_data();
    {
      py::gil_scoped_release release;
      ThreadPool& pool = workers_.Pool(threads_);
      const SignalWatch watch(pool);
      const std::vector<float> made =
          Denoise(request, config, weights, comm, pool, after_step, pixels);
      std::copy(made.begin(), made.end(), values);
    }
    return py::make_tuple(frames, latents, SettingsJson(recipe.Record()).dump(), remarks);
  }

 private:
  GenerateRequest RequestFor(const std::map<std::string, std::string>& settings) const {
    Recipe recipe;
    recipe.Set("model", model_, Recipe::Source::kGiven);
    std::set<std::string> given;
    for (const auto& [key, text] : settings) {
      if (key == kQuality) continue;
      recipe.Set(key, text, Recipe::Source::kGiven, key);
      given.insert(key);
    }
    if (const auto quality = settings.find(kQuality); quality != settings.end())
      ApplyQuality(ParseChoice(kQuality, quality->second, QualityNames()), given,
                   Recipe::Source::kGiven, recipe);
    return PlainRequest(std::move(recipe), {.files = VideoFiles::kNone, .ranks = 1});
  }

  // Weights stay for the next video.
  std::shared_ptr<LoadedParts> PartsFor(WeightType weights) {
    if (!parts_ || weights != parts_weights_) parts_ = std::make_shared<LoadedParts>();
    parts_weights_ = weights;
    return parts_;
  }

  // Fills the pixels; returns the latents.
  std::vector<float> Denoise(const GenerateRequest& request, GenerationConfig config,
                             WeightType weights, Communicator& comm, ThreadPool& pool,
                             const py::object& after_step, uint8_t* pixels) {
    PipelineOptions options = PipelineOptionsOf(request, weights);
    options.parts = PartsFor(weights);
    Pipeline pipeline(request.folder, comm, pool, std::move(options));
    pipeline.Vae();  // what is wrong with it is said before the steps
    config.seed = request.tasks[0].seed;
    const std::vector<PromptRows> rows = pipeline.Encode(
        std::vector{config.negative_prompt, request.tasks[0].prompt}, config.text_rows);
    DenoiseHooks hooks;
    hooks.after_step = [&](const DenoiseStep& step) {
      py::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      if (!after_step.is_none()) after_step(step.done, step.steps, step.seconds, step.skipped);
    };
    std::vector<float> latents = pipeline.Denoise(config, rows[1], rows[0], hooks).latents;
    const size_t frame_bytes = static_cast<size_t>(config.height * config.width) * 3;
    pipeline.Decode(config, latents, [&](int64_t frame, std::span<const float> rgb) {
      ToBytes(rgb, {pixels + static_cast<size_t>(frame) * frame_bytes, frame_bytes});
    });
    return latents;
  }

  std::string model_;
  int threads_;
  std::mutex busy_;
  WorkerThreads workers_;
  std::shared_ptr<LoadedParts> parts_;
  WeightType parts_weights_ = WeightType::kF32;
};

}  // namespace

void DefinePipeline(py::module_& module) {
  module.def("recipe_keywords", &Keywords);
  py::class_<VideoPipeline>(module, "Pipeline")
      .def(py::init<std::string, int>(), py::arg("model"), py::arg("threads"))
      .def("generate", &VideoPipeline::Generate, py::arg("settings"), py::arg("after_step"));
}

}  // namespace equitile

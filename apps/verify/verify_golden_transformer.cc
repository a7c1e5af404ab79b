// Golden passes of the transformer, stage by stage, on the ranks of a communicator.
#include <fmt/format.h>

#include <set>
#include <utility>

#include "apps/verify/golden_file.h"
#include "apps/verify/verify_golden.h"
#include "equitile/kernel/rows/patches.h"
#include "equitile/model/golden/golden_stages.h"

namespace equitile {
namespace {

GoldenTolerance ToleranceOf(std::string_view what) {
  if (what == "patch_embedding" || what == "text_projected") return {.max = 1e-5};
  if (what == "temb" || what == "timestep_proj") return {.max = 6e-5};
  if (what == "sinusoid") return {.max = 8e-5, .absolute = true};
  return {.max = 1e-4, .l2 = 2e-5};
}

// What remains of height and width after diffusers' patches: the last odd row is not looked at.
ConstView WholePatches(const Tensor& latent, const PatchSize& patch) {
  ConstView view = latent.view();
  const int64_t sizes[] = {1, patch.frames, patch.height, patch.width};
  for (int dim = 1; dim < 4 && view.Rank() == 4; ++dim) {
    view = view.Slice(dim, {0, view.Extent(dim) / sizes[dim] * sizes[dim]});
  }
  return view;
}

class FileCheck {
 public:
  FileCheck(const GoldenRun& run, const std::string& name)
      : run_(run),
        golden_(run.golden.root, name, run.report),
        transformer_(run.pipeline.Transformer()),
        config_(transformer_.config()),
        stored_latent_(golden_.Input("latent").ToF32()),
        latent_(WholePatches(stored_latent_, config_.patch)),
        grid_(PatchGrid(latent_, config_.patch)),
        rows_(GoldenRows(golden_.tensors(), grid_.VideoTokens())),
        attention_(run.pipeline.Attention(), std::make_unique<ConstantMasks>(DenseMask()),
                   {.head_dim = config_.head_dim, .layers = config_.layers}) {}

  void Run() {
    if (golden_.Has("rows")) golden_.Input("rows");
    for (const std::string& name : GoldenCases(golden_.tensors())) RunCase(name + ".");
    golden_.Finish();
  }

 private:
  BlockMask DenseMask() const {
    const int64_t tokens = grid_.VideoTokens();
    return BlockMask::Dense({.batch = 1, .heads = config_.heads},
                            {.q_tokens = tokens, .kv_tokens = tokens});
  }

  // What the file holds of a case, and what it must hold.
  std::set<std::string> StagesOf(const std::string& prefix) const {
    std::set<std::string> names = {"temb", "output"};
    for (int64_t i = 0; i < config_.layers; ++i)
      names.insert(fmt::format("block{}.block.output", i));
    for (const StoredTensor& tensor : golden_.tensors().tensors()) {
      if (!tensor.name.starts_with(prefix)) continue;
      const std::string what = tensor.name.substr(prefix.size());
      if (what != "timestep" && what != "text" && what != "text_tokens") names.insert(what);
    }
    return names;
  }

  void RunCase(const std::string& prefix) {
    WanStages stages(config_);
    const WanText text =
        transformer_.Text(golden_.Input(prefix + "text").ToF32(),
                          golden_.Input(prefix + "text_tokens").Integers().at(0), WanTap(stages));
    const std::set<std::string> found = StagesOf(prefix);
    const std::vector<std::string> names(found.begin(), found.end());
    const std::vector<float> velocity =
        Forward(text, golden_.Input(prefix + "timestep").Floats().at(0), stages);
    stages.Gather(run_.comm, names, grid_.VideoTokens());
    if (!run_.Leads()) return;
    stages.PutRotations(grid_, rows_);
    stages.Put("output", velocity);
    for (const std::string& what : names) Compare(prefix + what, what, stages);
  }

  // [channels, frames, height, width], on rank 0.
  std::vector<float> Forward(const WanText& text, float timestep, WanStages& stages) {
    const int64_t tokens = grid_.VideoTokens(), features = config_.OutFeatures();
    const Range home =
        HomeTokens(1, config_.heads, tokens, run_.comm.rank(), run_.comm.size()).front();
    const WanText* texts[] = {&text};
    std::vector<float> rows(static_cast<size_t>(home.size() * features));
    transformer_.Forward({.timestep = timestep,
                          .latents = {&latent_, 1},
                          .texts = texts,
                          .home = {&home, 1},
                          .attention = SelfAttention(attention_),
                          .tap = WanTap(stages)},
                         rows.data());
    rows = GatherHomeRows(run_.comm, std::move(rows), tokens, features);
    if (!run_.Leads()) return {};
    Tensor output(DType::kF32,
                  {config_.out_channels, latent_.Extent(1), latent_.Extent(2), latent_.Extent(3)});
    ScatterPatches(rows.data(), config_.patch, 0, tokens, output.view());
    return {output.DataAs<float>(), output.DataAs<float>() + output.Elements()};
  }

  void Compare(const std::string& tensor, const std::string& what, const WanStages& stages) {
    const std::vector<float> got = stages.InFileLayout(what, rows_);
    if (got.empty()) return;
    if (what.starts_with("rope")) return golden_.Equal(tensor, got);
    golden_.Near(tensor, got, ToleranceOf(what));
  }

  const GoldenRun& run_;
  GoldenFile golden_;
  WanTransformer& transformer_;
  const WanConfig& config_;
  const Tensor stored_latent_;
  const ConstView latent_;
  const TokenGrid grid_;
  const std::vector<int64_t> rows_;
  LayerAttention attention_;
};

}  // namespace

void VerifyGoldenTransformer(const GoldenRun& run) {
  const auto names = run.golden.Files("transformer_", ".safetensors");
  if (names.empty()) return run.report.Fail("transformer_*.safetensors", "", "missing");
  for (const std::string& name : names) FileCheck(run, name).Run();
}

}  // namespace equitile

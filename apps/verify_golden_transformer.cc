// Golden passes of the transformer, stage by stage.
#include <cstring>
#include <map>

#include "apps/golden_models.h"
#include "apps/verify_golden.h"
#include "equitile/io/safetensors.h"

namespace equitile {
namespace {

GoldenTolerance ToleranceOf(std::string_view what) {
  if (what == "patch_embedding" || what == "text_projected") return {.max = 1e-5};
  if (what == "temb" || what == "timestep_proj") return {.max = 6e-5};
  if (what == "sinusoid") return {.max = 8e-5, .absolute = true};
  return {.max = 1e-4, .l2 = 2e-5};
}

bool IsPerToken(std::string_view what) {
  return what.starts_with("block") || what.starts_with("head") || what == "patch_embedding";
}

std::vector<int64_t> RowsOf(const TensorFiles& file, int64_t tokens) {
  if (const StoredTensor* rows = file.Find("rows")) {
    std::vector<int64_t> kept = rows->Integers();
    for (const int64_t row : kept) {
      if (row < 0 || row >= tokens) {
        throw InputError("{}: 'rows' holds {}; the latent has {} tokens", file.name(), row, tokens);
      }
    }
    return kept;
  }
  std::vector<int64_t> rows(static_cast<size_t>(tokens));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i);
  return rows;
}

// What a tap saw, [tokens][D], in the layout of the file: only `rows`, and q, k, v by head.
std::vector<float> InFileLayout(const std::vector<float>& data, std::string_view what,
                                const std::vector<int64_t>& rows, const WanConfig& config) {
  const auto d = static_cast<size_t>(config.Width()), dim = static_cast<size_t>(config.head_dim);
  const bool by_head = what.ends_with(".q") || what.ends_with(".k") || what.ends_with(".v");
  std::vector<float> out(rows.size() * d);
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < d; ++i) {
      const size_t to = by_head ? (i / dim * rows.size() + r) * dim + i % dim : r * d + i;
      out[to] = data[static_cast<size_t>(rows[r]) * d + i];
    }
  }
  return out;
}

using Tapped = std::map<std::string, std::vector<float>, std::less<>>;

void AddRotations(const TokenGrid& grid, const WanConfig& config, const std::vector<int64_t>& rows,
                  Tapped& tapped) {
  const RopeTable rope(grid, config.head_dim);
  const auto half = static_cast<size_t>(config.head_dim / 2);
  std::vector<float> cos(rows.size() * half), sin(cos.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    rope.Angles(rows[r], std::span(cos).subspan(r * half, half),
                std::span(sin).subspan(r * half, half));
  }
  tapped["rope_cos"] = std::move(cos);
  tapped["rope_sin"] = std::move(sin);
}

class FileCheck {
 public:
  FileCheck(const GoldenTransformer& model, const std::string& name, const TensorFiles& file,
            ThreadPool& pool, GoldenReport& report)
      : model_(model), name_(name), file_(file), pool_(pool), report_(report) {}

  void Run() {
    const Tensor latent = file_["latent"].ToF32();
    const TokenGrid grid = PatchGrid(latent, model_.config.patch);
    const std::vector<int64_t> rows = RowsOf(file_, grid.VideoTokens());
    for (const StoredTensor& tensor : file_.tensors()) {
      const std::string_view name = tensor.name;
      if (!name.ends_with(".timestep")) continue;
      RunCase(std::string(name.substr(0, name.size() - 8)), latent, grid, rows);
    }
  }

 private:
  void RunCase(const std::string& prefix, const Tensor& latent, const TokenGrid& grid,
               const std::vector<int64_t>& rows) {
    Tapped tapped;
    const auto tap = [&](std::string_view what, const float* data, int64_t count, int64_t width) {
      tapped[std::string(what)].assign(data, data + count * width);
    };
    WanTransformer transformer(model_.config, model_.weights, pool_);
    const WanText text = transformer.Text(file_[prefix + "text"].ToF32(),
                                          file_[prefix + "text_tokens"].Integers()[0], WanTap(tap));
    const Tensor output = RunGoldenPass(transformer, latent, text,
                                        file_[prefix + "timestep"].Floats()[0], pool_, WanTap(tap));
    tapped["output"].assign(output.DataAs<float>(), output.DataAs<float>() + output.Elements());
    AddRotations(grid, model_.config, rows, tapped);
    for (const StoredTensor& tensor : file_.tensors()) {
      if (!tensor.name.starts_with(prefix)) continue;
      const std::string what = tensor.name.substr(prefix.size());
      if (what == "timestep" || what == "text" || what == "text_tokens") continue;
      const auto found = tapped.find(what);
      if (found == tapped.end()) {
        report_.Skip(name_, tensor.name);
      } else if (what.starts_with("rope")) {
        report_.Equal(name_, tensor, found->second);
      } else {
        report_.Near(name_, tensor,
                     IsPerToken(what) ? InFileLayout(found->second, what, rows, model_.config)
                                      : found->second,
                     ToleranceOf(what));
      }
    }
  }

  const GoldenTransformer& model_;
  const std::string name_;
  const TensorFiles& file_;
  ThreadPool& pool_;
  GoldenReport& report_;
};

}  // namespace

Tensor RunGoldenPass(WanTransformer& transformer, const ConstView& latent, const WanText& text,
                     float timestep, ThreadPool& pool, WanTap tap) {
  const WanConfig& config = transformer.config();
  const int64_t tokens = PatchGrid(latent, config.patch).VideoTokens();
  LocalAttention attention({.batch = 1, .heads = config.heads}, tokens, config.head_dim, pool);
  const Range home{0, tokens};
  const WanText* texts[] = {&text};
  std::vector<float> rows(static_cast<size_t>(tokens * config.OutFeatures()));
  WanPass pass;
  pass.timestep = timestep;
  pass.latents = {&latent, 1};
  pass.texts = texts;
  pass.home = {&home, 1};
  pass.attention = SelfAttention(attention);
  pass.tap = tap;
  transformer.Forward(pass, rows.data());
  Tensor output(DType::kF32,
                {config.out_channels, latent.Extent(1), latent.Extent(2), latent.Extent(3)});
  ScatterPatches(rows.data(), config.patch, 0, tokens, output.view());
  return output;
}

void VerifyGoldenTransformer(const GoldenFolder& golden, ThreadPool& pool, GoldenReport& report) {
  const auto names = golden.Files("transformer_", ".safetensors");
  if (names.empty()) return report.Fail("transformer_*.safetensors", "", "missing");
  const GoldenTransformer model(golden.checkpoint, pool);
  for (const std::string& name : names) {
    const TensorFiles file = TensorFiles::OpenFile(golden.root / name);
    FileCheck(model, name, file, pool, report).Run();
  }
}

}  // namespace equitile

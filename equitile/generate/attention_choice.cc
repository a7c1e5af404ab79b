#include "equitile/generate/attention_choice.h"

#include "equitile/base/error.h"
#include "equitile/model/sampling/denoise.h"
#include "equitile/sparsity/attention_spec.h"

namespace equitile {
namespace {

std::string CheckAttention(std::string_view what, std::string_view text) {
  if (text != "dense" && !text.starts_with("mask:")) {
    throw InputError("{} {}: must be dense or mask:FILE", what, text);
  }
  return ParseAttention(text).Text();
}

// Blocks of another grid would be other tokens, even of as many.
void CheckMaskGrid(const MaskTable& mask, const std::string& path, const GenerationConfig& config,
                   const WanConfig& model) {
  const TokenGrid video{.frames = config.LatentFrames() / model.patch.frames,
                        .height = config.LatentHeight() / model.patch.height,
                        .width = config.LatentWidth() / model.patch.width};
  const std::optional<TokenGrid>& grid = mask.grid();
  if (!grid || *grid == video) return;
  if (grid->text_before != 0 || grid->text_after != 0) {
    throw InputError("{}: has text tokens; the self-attention of Wan has none", path);
  }
  throw InputError(
      "{}: is for a grid of {}x{}x{} tokens (frames, height, width), the video has "
      "{}x{}x{}",
      path, grid->frames, grid->height, grid->width, video.frames, video.height, video.width);
}

}  // namespace

FieldType AttentionType() {
  FieldType type = Text("KIND");
  type.check = CheckAttention;
  type.identity = [](std::string_view text) {
    AttentionSpec spec = ParseAttention(text);
    spec.file.clear();
    return spec.Text();
  };
  type.stored = [](std::string_view text) {
    AttentionSpec spec = ParseAttention(text);
    spec.file = InputPath("").Stored(spec.file);
    return spec.Text();
  };
  return type;
}

std::filesystem::path AttentionFile(const std::string& attention) {
  return ParseAttention(attention).file;
}

ChosenMask ReadChosenMask(const std::filesystem::path& path, const GenerationConfig& config,
                          const WanConfig& model) {
  const MaskTable table = MaskTable::Read(path);
  const std::string name = path.string();
  // For both passes, from files for one or two.
  ChosenMask chosen{.mask = table.ForBatch(config.Passes()), .hash = table.hash()};
  const BlockMask& first = chosen.mask.First().blocks();
  const int64_t tokens = VideoTokens(model, config);
  if (first.lanes().heads != model.heads) {
    throw InputError("{}: has {} heads, the model {}", name, first.lanes().heads, model.heads);
  }
  if (first.grid().q_tokens != tokens || first.grid().kv_tokens != tokens) {
    throw InputError("{}: is for {} x {} tokens, the video has {}", name, first.grid().q_tokens,
                     first.grid().kv_tokens, tokens);
  }
  CheckMaskGrid(chosen.mask, name, config, model);
  chosen.mask.CheckCovers({0, config.steps}, model.layers);
  return chosen;
}

}  // namespace equitile

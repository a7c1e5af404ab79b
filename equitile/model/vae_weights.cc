#include "equitile/model/vae_weights.h"

#include <algorithm>
#include <string>

#include "equitile/base/error.h"

namespace equitile {
namespace {

// Walks all tensors of the decoder; first only to check them, then to pack.
class Reader {
 public:
  Reader(const TensorFiles& files, ThreadPool& pool, bool check_only)
      : files_(files), pool_(pool), check_only_(check_only) {}

  // shape: of the weights, as stored.
  void Conv(const std::string& name, const Shape& shape, ConvForm form, PackedConv& conv) {
    Parts(name, shape, form, {&conv});
  }

  // The outputs cut into as many convolutions.
  void Parts(const std::string& name, const Shape& shape, ConvForm form,
             std::initializer_list<PackedConv*> convs) {
    const StoredTensor& stored = files_[name + ".weight"];
    const StoredTensor& stored_bias = files_[name + ".bias"];
    Check(stored, shape);
    Check(stored_bias, {shape[0]});
    if (check_only_) return;
    const Tensor weights = stored.ToF32();
    const std::vector<float> bias = stored_bias.Floats();
    Shape deep = {shape[0], shape[1]};
    for (int dim = shape.Rank(); dim < 5; ++dim) deep.Append(1);
    for (int dim = 2; dim < shape.Rank(); ++dim) deep.Append(shape[dim]);
    const int64_t outs = shape[0] / static_cast<int64_t>(convs.size());
    int64_t first = 0;
    for (PackedConv* conv : convs) {
      *conv =
          PackedConv(weights.view().Reshape(deep).Slice(0, {first, first + outs}),
                     std::span(bias).subspan(static_cast<size_t>(first), static_cast<size_t>(outs)),
                     form, pool_);
      first += outs;
    }
  }

  void Gamma(const std::string& name, const Shape& shape, VaeGamma& gamma) {
    const StoredTensor& stored = files_[name + ".gamma"];
    Check(stored, shape);
    if (check_only_) return;
    gamma = stored.Floats();
    gamma.resize(static_cast<size_t>(PaddedChannels(shape[0])));
  }

  void Resnet(const std::string& name, int64_t in, int64_t out, VaeResnet& resnet) {
    Gamma(name + ".norm1", {in, 1, 1, 1}, resnet.norm1);
    Conv(name + ".conv1", {out, in, 3, 3, 3}, ConvForm::kWinograd, resnet.conv1);
    Gamma(name + ".norm2", {out, 1, 1, 1}, resnet.norm2);
    Conv(name + ".conv2", {out, out, 3, 3, 3}, ConvForm::kWinograd, resnet.conv2);
    if (in != out) {
      Conv(name + ".conv_shortcut", {out, in, 1, 1, 1}, ConvForm::kDirect, resnet.shortcut);
    }
  }

 private:
  void Check(const StoredTensor& stored, const Shape& shape) const {
    if (check_only_) {
      stored.FloatType();
      stored.CheckShape(shape);
    } else {
      stored.CheckFinite();
    }
  }

  const TensorFiles& files_;
  ThreadPool& pool_;
  const bool check_only_;
};

void Read(const VaeConfig& config, Reader& reader, VaeWeights& w) {
  const int64_t z = config.z_dim, mid = config.MidChannels();
  reader.Conv("post_quant_conv", {z, z, 1, 1, 1}, ConvForm::kDirect, w.post_quant);
  reader.Conv("decoder.conv_in", {mid, z, 3, 3, 3}, ConvForm::kWinograd, w.conv_in);
  reader.Resnet("decoder.mid_block.resnets.0", mid, mid, w.mid[0]);
  const std::string attention = "decoder.mid_block.attentions.0";
  reader.Gamma(attention + ".norm", {mid, 1, 1}, w.attention_norm);
  reader.Parts(attention + ".to_qkv", {3 * mid, mid, 1, 1}, ConvForm::kDirect, {&w.q, &w.k, &w.v});
  reader.Conv(attention + ".proj", {mid, mid, 1, 1}, ConvForm::kDirect, w.proj);
  reader.Resnet("decoder.mid_block.resnets.1", mid, mid, w.mid[1]);
  for (size_t b = 0; b < w.up.size(); ++b) {
    VaeUpBlock& block = w.up[b];
    const int64_t out = block.shape.out;
    const std::string name = fmt::format("decoder.up_blocks.{}", b);
    for (size_t r = 0; r < block.resnets.size(); ++r) {
      reader.Resnet(fmt::format("{}.resnets.{}", name, r), r == 0 ? block.shape.in : out, out,
                    block.resnets[r]);
    }
    if (block.shape.upsample_time) {
      reader.Parts(name + ".upsamplers.0.time_conv", {2 * out, out, 3, 1, 1}, ConvForm::kDirect,
                   {&block.time[0], &block.time[1]});
    }
    if (block.shape.upsample) {
      reader.Conv(name + ".upsamplers.0.resample.1", {out / 2, out, 3, 3}, ConvForm::kUpsampled,
                  block.upsample);
    }
  }
  const int64_t last = config.UpBlocks().back().out;
  reader.Gamma("decoder.norm_out", {last, 1, 1, 1}, w.norm_out);
  reader.Conv("decoder.conv_out", {config.out_channels, last, 3, 3, 3}, ConvForm::kWinograd,
              w.conv_out);
}

}  // namespace

VaeWeights::VaeWeights(const VaeConfig& vae_config, const TensorFiles& files, ThreadPool& pool)
    : config(vae_config) {
  for (const VaeUpBlockShape& shape : config.UpBlocks()) {
    VaeUpBlock& block = up.emplace_back();
    block.shape = shape;
    block.resnets.resize(static_cast<size_t>(config.res_blocks) + 1);
  }
  for (bool check_only : {true, false}) {
    Reader reader(files, pool, check_only);
    Read(config, reader, *this);
  }
}

int64_t VaeWeights::Bytes() const {
  int64_t bytes = 0;
  const auto add = [&](std::initializer_list<const PackedConv*> convs) {
    for (const PackedConv* conv : convs) bytes += conv->Bytes();
  };
  const auto add_resnet = [&](const VaeResnet& r) { add({&r.conv1, &r.conv2, &r.shortcut}); };
  add({&post_quant, &conv_in, &q, &k, &v, &proj, &conv_out});
  for (const VaeResnet& resnet : mid) add_resnet(resnet);
  for (const VaeUpBlock& block : up) {
    for (const VaeResnet& resnet : block.resnets) add_resnet(resnet);
    add({&block.time[0], &block.time[1], &block.upsample});
  }
  return bytes;
}

VaeWeights LoadVaeWeights(const std::filesystem::path& vae_folder, ThreadPool& pool) {
  return VaeWeights(ReadVaeConfig(vae_folder / "config.json"), TensorFiles::OpenFolder(vae_folder),
                    pool);
}

}  // namespace equitile

#include "equitile/model/vae/vae_weights.h"

#include <algorithm>
#include <string>
#include <utility>

#include "equitile/base/error.h"

namespace equitile {
namespace {

void Pack(const ConstView& weights, std::span<const float> bias, ConvForm form,
          const VaeGamma& gamma, ThreadPool& pool, PackedConv& to) {
  if (gamma.empty()) {
    to.Assign(weights, bias, form, pool);
  } else {
    to.AssignRounded(weights, bias, gamma, pool);
  }
}

// Walks all tensors of the decoder; first only to check them, then to pack.
class Reader {
 public:
  Reader(const TensorFiles& files, ThreadPool& pool, Compute compute, int64_t most_kept_bytes,
         bool check_only)
      : files_(files),
        pool_(pool),
        rounds_(compute != Compute::kF32),
        most_kept_bytes_(most_kept_bytes),
        check_only_(check_only) {}

  // shape: of the weights, as stored.
  void Conv(const std::string& name, const Shape& shape, ConvForm form, VaeConv& conv) {
    Parts(name, shape, form, {&conv});
  }

  // The outputs cut into as many convolutions.
  void Parts(const std::string& name, const Shape& shape, ConvForm form,
             std::initializer_list<VaeConv*> convs) {
    const StoredTensor& stored = files_[name + ".weight"];
    const StoredTensor& stored_bias = files_[name + ".bias"];
    Check(stored, shape);
    Check(stored_bias, {shape[0]});
    if (check_only_) return;
    const std::vector<float> bias = stored_bias.Floats();
    Shape deep = {shape[0], shape[1]};
    for (int dim = shape.Rank(); dim < 5; ++dim) deep.Append(1);
    for (int dim = 2; dim < shape.Rank(); ++dim) deep.Append(shape[dim]);
    const ConstView weights(static_cast<const void*>(stored.bytes.data()), stored.FloatType(),
                            deep);
    const int64_t outs = shape[0] / static_cast<int64_t>(convs.size());
    int64_t first = 0;
    for (VaeConv* conv : convs) {
      conv->form = form;
      conv->weights = weights.Slice(0, {first, first + outs});
      conv->bias.assign(bias.begin() + first, bias.begin() + first + outs);
      conv->stored = &stored;
      first += outs;
      if (PackedConv::PackedBytes(conv->weights.shape(), form) <= most_kept_bytes_) Keep(*conv);
    }
    files_.Forget(stored);
  }

  // Of inputs that a norm made.
  void NormedConv(const std::string& name, const Shape& shape, const VaeGamma& gamma,
                  VaeConv& conv) {
    if (rounds_) conv.gamma = gamma;
    Conv(name, shape, ConvForm::kWinograd, conv);
  }

  // See VaeWeights::conv_out.
  void LastConv(const std::string& name, const Shape& shape, const VaeGamma& gamma,
                VaeConv& conv) {
    const StoredTensor& stored = files_[name + ".weight"];
    const StoredTensor& stored_bias = files_[name + ".bias"];
    Check(stored, shape);
    Check(stored_bias, {shape[0]});
    if (check_only_) return;
    const Tensor weights = stored.ToF32();
    const int64_t outs = shape[0], ins = shape[1], taps = shape[2];
    Tensor split(DType::kF32, {taps * outs, ins, 1, shape[3], shape[4]});
    for (int64_t t = 0; t < taps; ++t) {
      for (int64_t o = 0; o < outs; ++o) {
        for (int64_t c = 0; c < ins; ++c) {
          for (int64_t y = 0; y < shape[3]; ++y) {
            for (int64_t x = 0; x < shape[4]; ++x) {
              split.view().Store(weights.view().Load(o, c, t, y, x), t * outs + o, c, 0, y, x);
            }
          }
        }
      }
    }
    std::vector<float> bias(static_cast<size_t>((taps - 1) * outs));
    const std::vector<float> newest = stored_bias.Floats();
    bias.insert(bias.end(), newest.begin(), newest.end());
    if (rounds_) conv.gamma = gamma;
    Pack(split, bias, ConvForm::kWinograd, conv.gamma, pool_, conv.kept);
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
    NormedConv(name + ".conv1", {out, in, 3, 3, 3}, resnet.norm1, resnet.conv1);
    Gamma(name + ".norm2", {out, 1, 1, 1}, resnet.norm2);
    NormedConv(name + ".conv2", {out, out, 3, 3, 3}, resnet.norm2, resnet.conv2);
    if (in != out) {
      Conv(name + ".conv_shortcut", {out, in, 1, 1, 1}, ConvForm::kDirect, resnet.shortcut);
    }
  }

 private:
  void Keep(VaeConv& conv) {
    Pack(conv.weights, conv.bias, conv.form, conv.gamma, pool_, conv.kept);
    conv.weights = {};
    conv.bias.clear();
  }

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
  const bool rounds_;
  const int64_t most_kept_bytes_;
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
  reader.LastConv("decoder.conv_out", {config.out_channels, last, 3, 3, 3}, w.norm_out,
                  w.conv_out);
}

}  // namespace

VaeWeights::VaeWeights(const VaeConfig& vae_config, TensorFiles files, ThreadPool& pool,
                       Compute compute, int64_t most_kept_bytes)
    : config(vae_config), files_(std::make_shared<const TensorFiles>(std::move(files))) {
  for (const VaeUpBlockShape& shape : config.UpBlocks()) {
    VaeUpBlock& block = up.emplace_back();
    block.shape = shape;
    block.resnets.resize(static_cast<size_t>(config.res_blocks) + 1);
  }
  for (bool check_only : {true, false}) {
    Reader reader(*files_, pool, compute, most_kept_bytes, check_only);
    Read(config, reader, *this);
  }
}

const PackedConv& VaeWeights::Packed(const VaeConv& conv, PackedConv& scratch,
                                     ThreadPool& pool) const {
  if (conv.weights.Rank() == 0) return conv.kept;
  Pack(conv.weights, conv.bias, conv.form, conv.gamma, pool, scratch);
  files_->Forget(*conv.stored);
  return scratch;
}

int64_t VaeWeights::Bytes() const {
  int64_t bytes = 0;
  const auto add = [&](std::initializer_list<const VaeConv*> convs) {
    for (const VaeConv* conv : convs) bytes += conv->kept.Bytes();
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

VaeWeights LoadVaeWeights(const std::filesystem::path& vae_folder, ThreadPool& pool,
                          Compute compute, int64_t most_kept_bytes) {
  return VaeWeights(ReadVaeConfig(vae_folder / "config.json"), TensorFiles::OpenFolder(vae_folder),
                    pool, compute, most_kept_bytes);
}

}  // namespace equitile

#include "equitile/model/wan/wan_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "equitile/base/aligned_buffer.h"
#include "equitile/base/error.h"
#include "equitile/base/rng.h"
#include "equitile/kernel/rounding_error.h"

namespace equitile {
namespace {

// One part of the packed bytes: a matrix or a vector, made of one tensor or of several stacked
// ones.
struct Entry {
  std::vector<std::string> tensors;
  Shape shape;      // of each tensor, as stored
  int64_t in = 0;   // columns of a matrix; 0: a vector
  int64_t out = 0;  // rows of each tensor, or elements of a vector
  int64_t offset = 0, bytes = 0;
  WeightType type = WeightType::kF32;
  PackedLinear* matrix = nullptr;
  std::span<const float>* vector = nullptr;

  // Of a matrix, without ".weight".
  std::string NameOfFirst() const { return tensors[0].substr(0, tensors[0].rfind('.')); }
  int64_t Stacked() const { return out * static_cast<int64_t>(tensors.size()); }
};

// All entries of a model in the order in which they lie, each bound to its place in `weights`. The
// only description of the layout: sizes, packing and views follow it.
class Layout {
 public:
  Layout(const WanConfig& config, const WanWeightTypes& types, WanWeights& weights)
      : int16_(types.int16), type_(types.type) {
    const int64_t d = config.Width(), ffn = config.ffn_dim;
    // Integers are for the layers of blocks, where the time goes; what is computed once per step,
    // prompt or token, and all that follows depends on, stays f32.
    if (IsInteger(types.type)) type_ = WeightType::kF32;
    const WeightType outside = type_;
    const PatchSize& p = config.patch;
    AddLinear({"patch_embedding"}, config.PatchFeatures(), d, weights.patch,
              {d, config.in_channels, p.frames, p.height, p.width});
    const std::string condition = "condition_embedder.";
    // Small, and f32 in checkpoints that are bf16 otherwise.
    type_ = WeightType::kF32;
    AddLinear({condition + "time_embedder.linear_1"}, config.freq_dim, d, weights.time_1);
    AddLinear({condition + "time_embedder.linear_2"}, d, d, weights.time_2);
    type_ = outside;
    AddLinear({condition + "time_proj"}, d, 6 * d, weights.time_proj);
    AddLinear({condition + "text_embedder.linear_1"}, config.text_dim, d, weights.text_1);
    AddLinear({condition + "text_embedder.linear_2"}, d, d, weights.text_2);
    type_ = types.type;
    weights.blocks.resize(static_cast<size_t>(config.layers));
    for (size_t i = 0; i < weights.blocks.size(); ++i) {
      WanBlockWeights& block = weights.blocks[i];
      const std::string name = fmt::format("blocks.{}.", i), self = name + "attn1.",
                        cross = name + "attn2.";
      AddVector(name + "scale_shift_table", {1, 6, d}, block.modulation);
      AddLinear({self + "to_q", self + "to_k", self + "to_v"}, d, d, block.qkv);
      AddVector(self + "norm_q.weight", {d}, block.norm_q);
      AddVector(self + "norm_k.weight", {d}, block.norm_k);
      AddLinear({self + "to_out.0"}, d, d, block.self_out);
      if (config.cross_attn_norm) {
        AddVector(name + "norm2.weight", {d}, block.norm2_weight);
        AddVector(name + "norm2.bias", {d}, block.norm2_bias);
      }
      AddLinear({cross + "to_q"}, d, d, block.cross_q);
      AddLinear({cross + "to_k", cross + "to_v"}, d, d, block.cross_kv);
      AddVector(cross + "norm_q.weight", {d}, block.cross_norm_q);
      AddVector(cross + "norm_k.weight", {d}, block.cross_norm_k);
      AddLinear({cross + "to_out.0"}, d, d, block.cross_out);
      AddLinear({name + "ffn.net.0.proj"}, d, ffn, block.ffn_in);
      AddLinear({name + "ffn.net.2"}, ffn, d, block.ffn_out);
    }
    type_ = outside;
    AddVector("scale_shift_table", {1, 2, d}, weights.modulation);
    AddLinear({"proj_out"}, d, config.OutFeatures(), weights.proj_out);
  }

  const std::vector<Entry>& entries() const { return entries_; }
  int64_t bytes() const { return bytes_; }

 private:
  void AddLinear(const std::vector<std::string>& names, int64_t in, int64_t out, WanLinear& linear,
                 const Shape& shape = {}) {
    Entry matrix, bias;
    matrix.shape = shape.Rank() == 0 ? Shape{out, in} : shape;
    matrix.in = in;
    matrix.out = bias.out = out;
    bias.shape = {out};
    for (const std::string& name : names) {
      matrix.tensors.push_back(name + ".weight");
      bias.tensors.push_back(name + ".bias");
    }
    matrix.matrix = &linear.weights;
    const bool stays = type_ == WeightType::kInt8 && std::ranges::count(int16_, names[0]) > 0;
    matrix.type = stays ? WeightType::kInt16 : type_;
    matrix.bytes = PackedLinearBytes(in, matrix.Stacked(), matrix.type);
    Add(std::move(matrix));
    bias.vector = &linear.bias;
    Add(std::move(bias));
  }

  void AddVector(const std::string& name, const Shape& shape, std::span<const float>& vector) {
    Entry entry;
    entry.tensors = {name};
    entry.shape = shape;
    entry.out = shape.Elements();
    entry.vector = &vector;
    Add(std::move(entry));
  }

  void Add(Entry entry) {
    if (entry.vector != nullptr) {
      entry.bytes = entry.Stacked() * static_cast<int64_t>(sizeof(float));
    }
    entry.offset = bytes_;
    bytes_ += RoundUp(entry.bytes, static_cast<int64_t>(kBufferAlignment));
    entries_.push_back(std::move(entry));
  }

  const std::vector<std::string>& int16_;
  WeightType type_;  // of the matrices that are added next
  std::vector<Entry> entries_;
  int64_t bytes_ = 0;
};

std::span<std::byte> Place(std::span<std::byte> to, const Entry& entry) {
  return to.subspan(static_cast<size_t>(entry.offset), static_cast<size_t>(entry.bytes));
}

void CheckSize(const Layout& layout, std::span<const std::byte> bytes) {
  if (static_cast<int64_t>(bytes.size()) < layout.bytes()) {
    throw InputError("[model] packed transformer: {} bytes; config and type ask for {}",
                     bytes.size(), layout.bytes());
  }
}

void CheckTensors(const Layout& layout, const TensorFiles& files) {
  for (const Entry& entry : layout.entries()) {
    for (const std::string& name : entry.tensors) {
      files[name].FloatType();
      files[name].CheckShape(entry.shape);
    }
  }
}

// Of the tensors that a matrix is stacked from.
class StoredStack {
 public:
  StoredStack(const TensorFiles& files, const Entry& entry) {
    for (const std::string& name : entry.tensors)
      matrices_.emplace_back(files[name], entry.out, entry.in);
    for (const StoredMatrix& matrix : matrices_) views_.push_back(matrix.view());
  }
  std::span<const ConstView> views() const { return views_; }

 private:
  std::vector<StoredMatrix> matrices_;
  std::vector<ConstView> views_;
};

void PackMatrix(const TensorFiles& files, const Entry& entry, std::span<std::byte> to,
                ThreadPool& pool) {
  const int64_t bad = PackLinear(StoredStack(files, entry).views(), entry.type, to, pool);
  if (bad >= 0) files[entry.tensors[static_cast<size_t>(bad)]].CheckFinite();
}

void PackVector(const TensorFiles& files, const Entry& entry, std::span<std::byte> to) {
  for (const std::string& name : entry.tensors) {
    files[name].CheckFinite();
    const std::vector<float> values = files[name].Floats();
    std::memcpy(to.data(), values.data(), values.size() * sizeof(float));
    to = to.subspan(values.size() * sizeof(float));
  }
}

}  // namespace

WanWeights::WanWeights(const WanConfig& config, const WanWeightTypes& types,
                       std::span<const std::byte> bytes) {
  const Layout layout(config, types, *this);
  CheckSize(layout, bytes);
  for (const Entry& entry : layout.entries()) {
    const auto part =
        bytes.subspan(static_cast<size_t>(entry.offset), static_cast<size_t>(entry.bytes));
    if (entry.vector != nullptr) {
      *entry.vector = {reinterpret_cast<const float*>(part.data()),
                       static_cast<size_t>(entry.Stacked())};
      continue;
    }
    *entry.matrix = PackedLinear::View(part);
    if (entry.matrix->In() != entry.in || entry.matrix->Out() != entry.Stacked() ||
        entry.matrix->type() != entry.type) {
      throw InputError("[model] packed transformer: {} is {} -> {}, {}; expected {} -> {}, {}",
                       entry.tensors[0], entry.matrix->In(), entry.matrix->Out(),
                       WeightTypeName(entry.matrix->type()), entry.in, entry.Stacked(),
                       WeightTypeName(entry.type));
    }
  }
}

int64_t WanWeights::Bytes(const WanConfig& config, const WanWeightTypes& types) {
  WanWeights weights;
  return Layout(config, types, weights).bytes();
}

std::vector<std::string> WanWeights::StayInt16(const TensorFiles& files, const WanConfig& config) {
  constexpr double kMostError = 2e-2;
  const WanWeightTypes int8 = WeightType::kInt8;
  WanWeights weights;
  const Layout layout(config, int8, weights);
  CheckTensors(layout, files);
  std::vector<std::string> names;
  for (const Entry& entry : layout.entries()) {
    if (entry.type != int8.type) continue;
    if (RoundingError(StoredStack(files, entry).views(), Compute::kInt8) > kMostError)
      names.push_back(entry.NameOfFirst());
  }
  return names;
}

int64_t WanWeights::BlockMatrices(const WanConfig& config) {
  const WanWeightTypes int8 = WeightType::kInt8;
  WanWeights weights;
  const Layout layout(config, int8, weights);
  return std::ranges::count(layout.entries(), int8.type, &Entry::type);
}

void WanWeights::Check(const TensorFiles& files, const WanConfig& config) {
  WanWeights weights;
  const WanWeightTypes f32;
  CheckTensors(Layout(config, f32, weights), files);
}

void WanWeights::Pack(const TensorFiles& files, const WanConfig& config,
                      const WanWeightTypes& types, std::span<std::byte> to, ThreadPool& pool,
                      FunctionRef<void(int64_t done, int64_t total)> report) {
  WanWeights weights;
  const Layout layout(config, types, weights);
  CheckSize(layout, to);
  CheckTensors(layout, files);
  for (const Entry& entry : layout.entries()) {
    if (entry.vector != nullptr) {
      PackVector(files, entry, Place(to, entry));
    } else {
      PackMatrix(files, entry, Place(to, entry), pool);
    }
    for (const std::string& name : entry.tensors) files.Forget(files[name]);
    if (report) report(entry.offset + entry.bytes, layout.bytes());
  }
}

void WanWeights::PackRandom(const WanConfig& config, const WanWeightTypes& types, uint64_t seed,
                            std::span<std::byte> to, ThreadPool& pool) {
  WanWeights weights;
  const Layout layout(config, types, weights);
  CheckSize(layout, to);
  uint32_t stream = 0;
  for (const Entry& entry : layout.entries()) {
    const Rng rng(seed, stream++);
    if (entry.vector != nullptr) {
      // Norm weights about 1, everything else about 0.
      const bool norm = entry.tensors[0].ends_with("weight");
      auto* values = reinterpret_cast<float*>(Place(to, entry).data());
      for (int64_t i = 0; i < entry.Stacked(); ++i) {
        values[i] = (norm ? 1.0f : 0.0f) + 0.2f * (rng.UniformAt(static_cast<uint64_t>(i)) - 0.5f);
      }
      continue;
    }
    // Rows of variance 1 / in, made a stack at a time.
    const float size = std::sqrt(12.0f / static_cast<float>(entry.in));
    std::vector<Tensor> parts;
    std::vector<ConstView> views;
    for (size_t p = 0; p < entry.tensors.size(); ++p) {
      Tensor& part = parts.emplace_back(DType::kF32, Shape{entry.out, entry.in});
      float* values = part.DataAs<float>();
      const auto base = static_cast<uint64_t>(p) * static_cast<uint64_t>(entry.out * entry.in);
      pool.ParallelFor(entry.out, [&](int64_t row, int) {
        const auto begin = static_cast<uint64_t>(row * entry.in);
        for (uint64_t i = 0; i < static_cast<uint64_t>(entry.in); ++i) {
          values[begin + i] = size * (rng.UniformAt(base + begin + i) - 0.5f);
        }
      });
      views.push_back(part.view());
    }
    PackLinear(views, entry.type, Place(to, entry), pool);
  }
}

}  // namespace equitile

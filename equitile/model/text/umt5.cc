#include "equitile/model/text/umt5.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "equitile/base/aligned_buffer.h"
#include "equitile/base/error.h"
#include "equitile/base/growing_buffer.h"
#include "equitile/kernel/attention/attention.h"
#include "equitile/kernel/linear/linear.h"

namespace equitile {
namespace {

constexpr int64_t kMaxPromptTokens = 1 << 14;  // the position bias is tokens^2 per head

float LoadUnaligned(const std::byte* at, DType dtype) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == DType::kBF16 ? ToFloat(Bf16{bits}) : ToFloat(F16{bits});
}

std::string BlockName(int64_t layer) { return fmt::format("encoder.block.{}.layer.", layer); }

void CheckTensor(const TensorFiles& files, const std::string& name, const Shape& shape) {
  const StoredTensor& tensor = files[name];
  tensor.FloatType();
  tensor.CheckShape(shape);
}

void CheckTensors(const TensorFiles& files, const Umt5Config& config) {
  const int64_t d = config.d_model, inner = config.Inner();
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string attention = BlockName(layer) + "0.", forward = BlockName(layer) + "1.";
    CheckTensor(files, attention + "layer_norm.weight", {d});
    for (const char* part : {"q", "k", "v"}) {
      CheckTensor(files, attention + "SelfAttention." + part + ".weight", {inner, d});
    }
    CheckTensor(files, attention + "SelfAttention.o.weight", {d, inner});
    CheckTensor(files, attention + "SelfAttention.relative_attention_bias.weight",
                {config.buckets, config.heads});
    CheckTensor(files, forward + "layer_norm.weight", {d});
    CheckTensor(files, forward + "DenseReluDense.wi_0.weight", {config.d_ff, d});
    CheckTensor(files, forward + "DenseReluDense.wi_1.weight", {config.d_ff, d});
    CheckTensor(files, forward + "DenseReluDense.wo.weight", {d, config.d_ff});
  }
  CheckTensor(files, "encoder.final_layer_norm.weight", {d});
}

// rows [count][width] = x / sqrt(mean(x^2) + eps) * weight. The sum is in double, one row at a
// time.
void RmsNorm(const float* x, std::span<const float> weight, float eps, int64_t count, float* rows) {
  const auto width = static_cast<int64_t>(weight.size());
  for (int64_t token = 0; token < count; ++token, x += width, rows += width) {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += double{x[i]} * double{x[i]};
    const auto inverse =
        static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(width) + double{eps}));
    for (int64_t i = 0; i < width; ++i) rows[i] = x[i] * inverse * weight[static_cast<size_t>(i)];
  }
}

}  // namespace

// One pass over all prompts, whose tokens lie one prompt after the other.
class Umt5Encoder::Run {
 public:
  Run(const Umt5Encoder& encoder, std::span<const std::vector<int32_t>> prompts, Compute compute,
      ThreadPool& pool)
      : encoder_(encoder),
        config_(encoder.config_),
        compute_(compute),
        pool_(pool),
        prompts_(prompts) {
    for (const auto& ids : prompts) tokens_ += static_cast<int64_t>(ids.size());
    hidden_ = AlignedBuffer<float>(tokens_ * config_.d_model);
    qkv_ = AlignedBuffer<float>(tokens_ * 3 * config_.Inner());
    attended_ = AlignedBuffer<float>(tokens_ * config_.heads * HeadDim());
    gate_ = AlignedBuffer<float>(tokens_ * config_.d_ff);
    forward_ = AlignedBuffer<float>(tokens_ * config_.d_ff);
    Embed();
  }

  void Layer(int64_t layer) {
    const std::string attention = BlockName(layer) + "0.", forward = BlockName(layer) + "1.";
    const int64_t d = config_.d_model, inner = config_.Inner(), ffn = config_.d_ff;
    const std::string self = attention + "SelfAttention.";
    Multiply({self + "q.weight", self + "k.weight", self + "v.weight"},
             Normed(attention + "layer_norm.weight"), {}, View(qkv_.data(), {tokens_, 3 * inner}));
    Attend(self + "relative_attention_bias.weight");
    const auto heads = [this](int64_t, int64_t first, int64_t count, float* rows) {
      JoinHeads(first, count, rows);
    };
    const View hidden(hidden_.data(), {tokens_, d});
    Multiply({self + "o.weight"}, RowProducer(heads), {.residual = hidden}, hidden);

    const std::string dense = forward + "DenseReluDense.";
    const LinearInput normed = Normed(forward + "layer_norm.weight");
    const View gate(gate_.data(), {tokens_, ffn}), wide(forward_.data(), {tokens_, ffn});
    Multiply({dense + "wi_0.weight"}, normed, {.activation = Activation::kGeluTanh}, gate);
    Multiply({dense + "wi_1.weight"}, normed, {.gate = gate}, wide);
    Multiply({dense + "wo.weight"}, ConstView(wide), {.residual = hidden}, hidden);
  }

  std::vector<Tensor> Finish() {
    const std::vector<float> weight = Vector("encoder.final_layer_norm.weight");
    std::vector<Tensor> rows;
    const float* from = hidden_.data();
    for (const auto& ids : prompts_) {
      const auto count = static_cast<int64_t>(ids.size());
      rows.emplace_back(DType::kF32, Shape{count, config_.d_model});
      RmsNorm(from, weight, config_.eps, count, rows.back().DataAs<float>());
      from += count * config_.d_model;
    }
    return rows;
  }

 private:
  // Heads are padded with zeros to what the attention kernel takes.
  int64_t HeadDim() const { return RoundUp(config_.d_kv, kHeadDimStep); }

  void Embed() {
    const StoredTensor& table = *encoder_.embedding_;
    const DType dtype = table.FloatType();
    const int64_t d = config_.d_model, bytes = DTypeBytes(dtype);
    float* row = hidden_.data();
    for (const auto& ids : prompts_) {
      for (const int32_t id : ids) {
        if (id < 0 || id >= config_.vocab_size) {
          throw InputError("[model] token id {}: outside the text encoder's vocabulary of {}", id,
                           config_.vocab_size);
        }
        const std::byte* from = table.bytes.data() + int64_t{id} * d * bytes;
        for (int64_t i = 0; i < d; ++i) {
          row[i] = LoadUnaligned(from + i * bytes, dtype);
          if (!std::isfinite(row[i])) {
            throw InputError("[model] {}: tensor '{}' is not finite at [{}, {}]", table.file,
                             table.name, id, i);
          }
        }
        row += d;
      }
    }
  }

  std::vector<float> Vector(const std::string& name) const {
    const StoredTensor& tensor = encoder_.files_[name];
    tensor.CheckFinite();
    return tensor.Floats();
  }

  // Rows of the norm of hidden_. The buffer is the run's, since its users are one after the other.
  LinearInput Normed(const std::string& name) {
    const std::vector<float> weight = Vector(name);
    if (normed_.size() == 0) normed_ = AlignedBuffer<float>(tokens_ * config_.d_model);
    const int64_t d = config_.d_model;
    pool_.ParallelFor(tokens_, [&](int64_t token, int) {
      RmsNorm(hidden_.data() + token * d, weight, config_.eps, 1, normed_.data() + token * d);
    });
    return ConstView(normed_.data(), Shape{tokens_, d});
  }

  // As the arithmetic has them; for f32 bf16 stays bf16, all else becomes f32.
  WeightType TypeFor(std::span<const ConstView> matrices) const {
    if (compute_ == Compute::kInt16) return WeightType::kInt16;
    if (compute_ == Compute::kInt8) return WeightType::kInt8;
    const bool are_narrow = std::ranges::all_of(
        matrices, [](const ConstView& matrix) { return matrix.dtype() == DType::kBF16; });
    return are_narrow ? WeightType::kBF16 : WeightType::kF32;
  }

  // y = x times the stacked matrices, packed here.
  void Multiply(const std::vector<std::string>& names, const LinearInput& x,
                const LinearEpilogue& epilogue, const View& y) {
    std::vector<StoredMatrix> matrices;
    std::vector<ConstView> views;
    for (const std::string& name : names) {
      const StoredTensor& stored = encoder_.files_[name];
      matrices.emplace_back(stored, stored.shape[0], stored.shape[1]);
      views.push_back(matrices.back().view());
    }
    const int64_t in = views[0].Extent(1);
    const WeightType type = TypeFor(views);
    const int64_t bytes = PackedLinearBytes(in, y.Extent(1), type);
    const std::span to(packed_.Get<std::byte>(bytes), static_cast<size_t>(bytes));
    const int64_t bad = PackLinear(views, type, to, pool_);
    if (bad >= 0) {
      encoder_.files_[names[static_cast<size_t>(bad)]].CheckFinite();  // throws, with the position
    }
    Linear({.weights = PackedLinear::View(to), .x = x, .epilogue = epilogue, .y = y}, pool_,
           workspace_);
  }

  void Attend(const std::string& bias_name) {
    const std::vector<float> table = Vector(bias_name);  // [buckets][heads]
    int64_t first = 0;
    for (const auto& ids : prompts_) {
      AttendPrompt(table, first, static_cast<int64_t>(ids.size()));
      first += static_cast<int64_t>(ids.size());
    }
  }

  void AttendPrompt(const std::vector<float>& table, int64_t first, int64_t count) {
    FillBias(table, count);
    const Lanes lanes{1, config_.heads};
    const BlockGrid grid{count, count};
    const AttentionRows rows = AttentionRows::Dense(lanes, grid);
    const auto part = [&](int64_t which) {
      return [this, which, first](int64_t lane, int64_t token, int64_t tokens, float* to) {
        HeadRows(which, lane, first + token, tokens, to);
      };
    };
    const auto q = part(0), k = part(1), v = part(2);
    const int64_t padded = config_.heads * HeadDim();
    const AttentionArgs args{
        .lanes = lanes,
        .grid = grid,
        .head_dim = HeadDim(),
        .scale = 1.0f,  // T5 does not scale
        .rows = &rows,
        .q = RowProducer(q),
        .k = RowProducer(k),
        .v = RowProducer(v),
        .bias = {.data = bias_.Data<float>(), .head_stride = count * count, .q_stride = count},
        .out = View(attended_.data() + first * padded, {1, count, config_.heads, HeadDim()}),
    };
    Attention(args, pool_, attention_workspace_);
  }

  // bias_ [heads][count][count], by distance of key and query.
  void FillBias(const std::vector<float>& table, int64_t count) {
    const int64_t heads = config_.heads;
    float* bias = bias_.Get<float>(heads * count * count);
    pool_.ParallelFor(heads, [&](int64_t head, int) {
      for (int64_t q = 0; q < count; ++q) {
        float* row = bias + (head * count + q) * count;
        for (int64_t k = 0; k < count; ++k) {
          row[k] = table[static_cast<size_t>(RelativeBucket(config_, k - q) * heads + head)];
        }
      }
    });
  }

  // to [tokens][HeadDim()]: q, k or v of one head.
  void HeadRows(int64_t part, int64_t head, int64_t first, int64_t tokens, float* to) const {
    const int64_t inner = config_.Inner(), d = config_.d_kv;
    for (int64_t i = 0; i < tokens; ++i, to += HeadDim()) {
      const float* from = qkv_.data() + (first + i) * 3 * inner + part * inner + head * d;
      std::copy_n(from, d, to);
      std::fill(to + d, to + HeadDim(), 0.0f);
    }
  }

  // rows [count][Inner()] of what attention left, without the padding.
  void JoinHeads(int64_t first, int64_t count, float* rows) const {
    const float* from = attended_.data() + first * config_.heads * HeadDim();
    for (int64_t i = 0; i < count * config_.heads; ++i) {
      std::copy_n(from + i * HeadDim(), config_.d_kv, rows + i * config_.d_kv);
    }
  }

  const Umt5Encoder& encoder_;
  const Umt5Config& config_;
  const Compute compute_;
  ThreadPool& pool_;
  std::span<const std::vector<int32_t>> prompts_;
  int64_t tokens_ = 0;
  Workspace workspace_;
  Workspace attention_workspace_;
  GrowingBuffer packed_;                  // the matrices in use
  AlignedBuffer<float> hidden_, normed_;  // [tokens][d_model]
  AlignedBuffer<float> qkv_;              // [tokens][3][Inner()]
  AlignedBuffer<float> attended_;         // [tokens][heads][HeadDim()]
  AlignedBuffer<float> gate_, forward_;   // [tokens][d_ff]
  GrowingBuffer bias_;                    // [heads][tokens of a prompt][the same]
};

Umt5Encoder::Umt5Encoder(const std::filesystem::path& folder)
    : config_(ReadUmt5Config(folder / "config.json")), files_(TensorFiles::OpenFolder(folder)) {
  embedding_ = files_.Find("shared.weight");
  if (embedding_ == nullptr) embedding_ = files_.Find("encoder.embed_tokens.weight");
  if (embedding_ == nullptr) embedding_ = &files_["shared.weight"];  // throws
  CheckTensor(files_, embedding_->name, {config_.vocab_size, config_.d_model});
  CheckTensors(files_, config_);
}

std::vector<Tensor> Umt5Encoder::Encode(std::span<const std::vector<int32_t>> prompts,
                                        ThreadPool& pool,
                                        FunctionRef<void(int64_t, int64_t)> report,
                                        Compute compute) const {
  for (const auto& ids : prompts) {
    if (ids.empty() || static_cast<int64_t>(ids.size()) > kMaxPromptTokens) {
      throw InputError("[model] a prompt of {} tokens; 1 to {} are possible", ids.size(),
                       kMaxPromptTokens);
    }
  }
  if (prompts.empty()) return {};
  Run run(*this, prompts, compute, pool);
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    run.Layer(layer);
    if (report) report(layer + 1, config_.layers);
  }
  return run.Finish();
}

}  // namespace equitile

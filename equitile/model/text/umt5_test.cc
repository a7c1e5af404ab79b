#include "equitile/model/text/umt5.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include "equitile/base/error.h"
#include "tests/in_repository.h"
#include "tests/refusal.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

const std::filesystem::path kGolden = InRepository("tests/golden");

using Prompts = std::vector<std::vector<int32_t>>;

TEST(Umt5, BucketsOfTheSpecification) {
  const Umt5Config config;
  const int64_t starts[] = {8, 12, 16, 23, 32, 46, 64, 91};  // of buckets 8 to 15
  for (int64_t n = 0; n < 5000; ++n) {
    int64_t bucket = n < 8 ? n : 7;
    for (const int64_t start : starts) bucket += n >= start ? 1 : 0;
    EXPECT_EQ(RelativeBucket(config, -n), bucket) << n;
    if (n > 0) EXPECT_EQ(RelativeBucket(config, n), bucket + 16) << n;
  }
}

TEST(Umt5, GoldenEmbeddings) {
  const TensorFiles golden = TensorFiles::OpenFile(kGolden / "text.safetensors");
  const Umt5Encoder encoder(kGolden / "tiny-wan/text_encoder");
  Prompts prompts;
  std::vector<const StoredTensor*> expected;
  for (const StoredTensor& tensor : golden.tensors()) {
    const size_t dot = tensor.name.find(".ids");
    if (dot == tensor.name.npos) continue;
    const std::string prefix = tensor.name.substr(0, dot);
    const auto ids = tensor.Integers(), mask = golden[prefix + ".mask"].Integers();
    prompts.emplace_back();
    for (size_t i = 0; i < ids.size() && mask[i] != 0; ++i) {
      prompts.back().push_back(static_cast<int32_t>(ids[i]));
    }
    expected.push_back(&golden[prefix + ".prompt_embeds"]);
  }
  ASSERT_GT(prompts.size(), 20u);
  ThreadPool pool(2);
  const std::vector<Tensor> rows = encoder.Encode(prompts, pool);
  double worst = 0;
  for (size_t p = 0; p < prompts.size(); ++p) {
    const std::vector<float> want = expected[p]->Floats();
    const float* got = rows[p].DataAs<float>();
    for (int64_t i = 0; i < rows[p].Elements(); ++i) {
      const double error = std::abs(double{got[i]} - double{want[static_cast<size_t>(i)]});
      if (error > worst || std::isnan(error)) worst = error;
    }
  }
  EXPECT_LT(worst, 2e-5);  // of tests/golden/README.md
}

bool SameBits(const Tensor& a, const Tensor& b) {
  return a.Elements() == b.Elements() &&
         std::memcmp(a.DataAs<float>(), b.DataAs<float>(),
                     static_cast<size_t>(a.Elements()) * sizeof(float)) == 0;
}

TEST(Umt5, RowsDependOnNeitherThreadsNorOtherPrompts) {
  const Umt5Encoder encoder(kGolden / "tiny-wan/text_encoder");
  Prompts prompts(3);
  std::mt19937 rng(3);
  const size_t lengths[] = {1, 131, 17};
  for (size_t p = 0; p < 3; ++p) {
    for (size_t i = 0; i < lengths[p]; ++i) prompts[p].push_back(static_cast<int32_t>(rng() % 752));
  }
  ThreadPool one(1);
  const std::vector<Tensor> together = encoder.Encode(prompts, one);
  for (const int threads : {2, 3, 5}) {
    ThreadPool pool(threads);
    const std::vector<Tensor> rows = encoder.Encode(prompts, pool);
    for (size_t p = 0; p < 3; ++p) EXPECT_TRUE(SameBits(rows[p], together[p])) << threads;
  }
  for (size_t p = 0; p < 3; ++p) {
    EXPECT_TRUE(SameBits(encoder.Encode({&prompts[p], 1}, one)[0], together[p])) << p;
  }
}

// A model of odd sizes, written as f32 and as f16 of the same values.
class OddModel {
 public:
  OddModel() {
    folder_.Write("config.json", R"({"model_type":"umt5","vocab_size":11,"d_model":13,"d_kv":5,
      "d_ff":19,"num_layers":2,"num_heads":3,"relative_attention_num_buckets":8,
      "relative_attention_max_distance":20,"layer_norm_epsilon":0.001})");
    Add("shared.weight", {11, 13});
    for (int layer = 0; layer < 2; ++layer) {
      const std::string block = fmt::format("encoder.block.{}.layer.", layer);
      Add(block + "0.layer_norm.weight", {13});
      for (const char* part : {"q", "k", "v"}) {
        Add(block + "0.SelfAttention." + part + ".weight", {15, 13});
      }
      Add(block + "0.SelfAttention.o.weight", {13, 15});
      Add(block + "0.SelfAttention.relative_attention_bias.weight", {8, 3});
      Add(block + "1.layer_norm.weight", {13});
      Add(block + "1.DenseReluDense.wi_0.weight", {19, 13});
      Add(block + "1.DenseReluDense.wi_1.weight", {19, 13});
      Add(block + "1.DenseReluDense.wo.weight", {13, 19});
    }
    Add("encoder.final_layer_norm.weight", {13});
  }

  std::filesystem::path Write(bool as_f16) {
    std::vector<StoredTensor> stored;
    std::vector<std::vector<F16>> halves;
    halves.reserve(tensors_.size());
    for (Entry& tensor : tensors_) {
      StoredTensor out{.name = tensor.name, .shape = tensor.shape};
      if (as_f16) {
        halves.emplace_back();
        for (const float x : tensor.values) halves.back().push_back(FromFloat<F16>(x));
        out.type = StoredType::kF16;
        out.bytes = std::as_bytes(std::span(halves.back()));
      } else {
        out.bytes = std::as_bytes(std::span(tensor.values));
      }
      stored.push_back(out);
    }
    WriteSafetensors(folder_ / "model.safetensors", stored);
    return folder_ / "";
  }

  std::vector<float>& operator[](const std::string& name) { return Find(name).values; }
  void Erase(const std::string& name) {
    std::erase_if(tensors_, [&](const Entry& tensor) { return tensor.name == name; });
  }
  void Reshape(const std::string& name, std::vector<int64_t> shape) {
    Find(name).shape = std::move(shape);
  }

  // The rows in double, straight from the equations.
  std::vector<double> Reference(const std::vector<int32_t>& ids);

 private:
  struct Entry {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  Entry& Find(const std::string& name) {
    for (Entry& tensor : tensors_) {
      if (tensor.name == name) return tensor;
    }
    throw InputError("no {}", name);
  }
  void Add(const std::string& name, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) {
      // Halves, so that f16 holds them exactly.
      values.push_back(ToFloat(FromFloat<F16>(0.4f * normal_(rng_) + (shape.size() == 1 ? 1 : 0))));
    }
    tensors_.push_back({name, std::move(shape), std::move(values)});
  }

  TempFolder folder_;
  std::mt19937 rng_{5};
  std::normal_distribution<float> normal_;
  std::vector<Entry> tensors_;
};

using Row = std::vector<double>;

Row Apply(const std::vector<float>& matrix, const Row& x) {
  Row y(matrix.size() / x.size());
  for (size_t o = 0; o < y.size(); ++o) {
    for (size_t i = 0; i < x.size(); ++i) y[o] += double{matrix[o * x.size() + i]} * x[i];
  }
  return y;
}

Row Rms(const Row& x, const std::vector<float>& weight) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  Row y = x;
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] *= double{weight[i]} / std::sqrt(sum / static_cast<double>(x.size()) + 0.001);
  }
  return y;
}

double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

std::vector<double> OddModel::Reference(const std::vector<int32_t>& ids) {
  const Umt5Config config{.buckets = 8, .max_distance = 20};
  std::vector<Row> h;
  for (const int32_t id : ids) {
    const float* row = (*this)["shared.weight"].data() + id * 13;
    h.emplace_back(row, row + 13);
  }
  const size_t n = ids.size();
  for (int layer = 0; layer < 2; ++layer) {
    const std::string block = fmt::format("encoder.block.{}.layer.", layer);
    const std::string self = block + "0.SelfAttention.", dense = block + "1.DenseReluDense.";
    std::vector<Row> q, k, v;
    for (const Row& x : h) {
      const Row a = Rms(x, (*this)[block + "0.layer_norm.weight"]);
      q.push_back(Apply((*this)[self + "q.weight"], a));
      k.push_back(Apply((*this)[self + "k.weight"], a));
      v.push_back(Apply((*this)[self + "v.weight"], a));
    }
    for (size_t i = 0; i < n; ++i) {
      Row joined(15);
      for (size_t head = 0; head < 3; ++head) {
        Row weight(n);
        double total = 0;
        for (size_t j = 0; j < n; ++j) {
          const int64_t bucket =
              RelativeBucket(config, static_cast<int64_t>(j) - static_cast<int64_t>(i));
          double logit = double{(*this)[self + "relative_attention_bias.weight"]
                                       [static_cast<size_t>(bucket) * 3 + head]};
          for (size_t c = 0; c < 5; ++c) logit += q[i][head * 5 + c] * k[j][head * 5 + c];
          total += weight[j] = std::exp(logit);
        }
        for (size_t j = 0; j < n; ++j) {
          for (size_t c = 0; c < 5; ++c) {
            joined[head * 5 + c] += weight[j] / total * v[j][head * 5 + c];
          }
        }
      }
      const Row out = Apply((*this)[self + "o.weight"], joined);
      for (size_t c = 0; c < 13; ++c) h[i][c] += out[c];
    }
    for (Row& x : h) {
      const Row a = Rms(x, (*this)[block + "1.layer_norm.weight"]);
      Row gate = Apply((*this)[dense + "wi_0.weight"], a);
      const Row wide = Apply((*this)[dense + "wi_1.weight"], a);
      for (size_t c = 0; c < gate.size(); ++c) gate[c] = Gelu(gate[c]) * wide[c];
      const Row out = Apply((*this)[dense + "wo.weight"], gate);
      for (size_t c = 0; c < 13; ++c) x[c] += out[c];
    }
  }
  std::vector<double> rows;
  for (const Row& x : h) {
    const Row y = Rms(x, (*this)["encoder.final_layer_norm.weight"]);
    rows.insert(rows.end(), y.begin(), y.end());
  }
  return rows;
}

TEST(Umt5, OddSizesInEveryStorageType) {
  OddModel model;
  const Prompts prompts = {{1}, {3, 10, 0, 7, 7, 2, 9, 1}, std::vector<int32_t>(37, 4)};
  ThreadPool pool(2);
  const std::vector<Tensor> rows = Umt5Encoder(model.Write(false)).Encode(prompts, pool);
  for (size_t p = 0; p < prompts.size(); ++p) {
    const std::vector<double> want = model.Reference(prompts[p]);
    for (int64_t i = 0; i < rows[p].Elements(); ++i) {
      EXPECT_NEAR(rows[p].DataAs<float>()[i], want[static_cast<size_t>(i)], 2e-5) << p << " " << i;
    }
  }
  const std::vector<Tensor> half = Umt5Encoder(model.Write(true)).Encode(prompts, pool);
  for (size_t p = 0; p < prompts.size(); ++p) EXPECT_TRUE(SameBits(half[p], rows[p]));
}

TEST(Umt5, WhatDoesNotFitIsNamed) {
  ThreadPool pool(1);
  const std::string wo = "encoder.block.1.layer.1.DenseReluDense.wo.weight";
  {
    OddModel model;
    model.Erase(wo);
    EXPECT_NE(Refusal([&] { Umt5Encoder(model.Write(false)); }).find(wo), std::string::npos);
  }
  {
    OddModel model;
    model.Reshape(wo, {19, 13});
    const std::string message = Refusal([&] { Umt5Encoder(model.Write(false)); });
    EXPECT_NE(message.find(wo), std::string::npos) << message;
    EXPECT_NE(message.find("[19, 13]"), std::string::npos) << message;
    EXPECT_NE(message.find("[13, 19]"), std::string::npos) << message;
  }
  for (const std::string& name :
       {wo, std::string("encoder.final_layer_norm.weight"), std::string("shared.weight"),
        std::string("encoder.block.0.layer.0.SelfAttention.k.weight")}) {
    OddModel model;
    model[name][5] = NAN;
    const Umt5Encoder encoder(model.Write(false));
    EXPECT_NE(Refusal([&] {
                encoder.Encode(Prompts{{0, 1}}, pool);
              }).find(name),
              std::string::npos);
  }
  OddModel model;
  const Umt5Encoder encoder(model.Write(false));
  EXPECT_THROW(encoder.Encode(Prompts{{11}}, pool), InputError);
  EXPECT_THROW(encoder.Encode(Prompts{{-1}}, pool), InputError);
  EXPECT_THROW(encoder.Encode(Prompts{{}}, pool), InputError);
  EXPECT_TRUE(encoder.Encode({}, pool).empty());
}

}  // namespace
}  // namespace equitile

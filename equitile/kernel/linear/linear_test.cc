#include "equitile/kernel/linear/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/base/rng.h"
#include "equitile/kernel/reference/linear_reference.h"
#include "equitile/kernel/rounding.h"
#include "equitile/kernel/target_testing.h"
#include "equitile/tensor/tensor.h"

namespace equitile {
namespace {

constexpr DType kAllTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

Tensor Random(DType dtype, const Shape& shape, uint32_t stream) {
  Tensor tensor(dtype, shape);
  const Rng rng(5, stream);
  const View flat = tensor.view().Reshape({shape.Elements()});
  for (int64_t i = 0; i < shape.Elements(); ++i) {
    flat.Store(rng.NormalAt(static_cast<uint64_t>(i)), i);
  }
  return tensor;
}

struct Case {
  int64_t tokens = 7, in = 40, out = 33;
  DType x = DType::kF32, y = DType::kF32;
  WeightType packed = WeightType::kF32;
};

// One layer with everything an epilogue can ask for; each test uses what it needs.
class Layer {
 public:
  explicit Layer(const Case& c)
      : size(c),
        x(Random(c.x, {c.tokens, c.in}, 1)),
        weights(Random(DType::kF32, {c.out, c.in}, 2)),
        bias(Random(DType::kF32, {c.out}, 3)),
        gate(Random(DType::kF32, {c.out}, 4)),
        token_gate(Random(DType::kBF16, {c.tokens, c.out}, 5)),
        residual(Random(DType::kF32, {c.tokens, c.out}, 6)),
        packed(PackedLinearBytes(c.in, c.out, c.packed)) {
    ThreadPool pool(1);
    PackLinear(weights, c.packed, packed.span(), pool);
  }

  LinearArgs Args(View y) const {
    LinearArgs args;
    args.weights = PackedLinear::View(packed.span());
    args.x = x.view();
    args.y = y;
    return args;
  }
  std::span<const float> Bias() const {
    return {bias.DataAs<float>(), static_cast<size_t>(size.out)};
  }
  Tensor Output() const {
    Tensor y(size.y, {size.tokens, size.out});
    std::fill_n(static_cast<std::byte*>(y.view().Data()), y.Elements() * DTypeBytes(size.y),
                std::byte{0x55});
    return y;
  }

  Case size;
  Tensor x, weights, bias, gate, token_gate, residual;
  AlignedBuffer<std::byte> packed;
};

void RunLayer(const LinearArgs& args, int threads = 2) {
  ThreadPool pool(threads);
  Workspace workspace;
  Linear(args, pool, workspace);
}

// All wanted elements against the reference; on failure the worst one.
void ExpectRight(const LinearArgs& args, const Layer& layer, const std::string& what) {
  const Range all[] = {{0, layer.size.out}};
  double worst = 0.0;
  std::string where;
  for (int64_t token = 0; token < layer.size.tokens; ++token) {
    for (const Range& range : args.columns.empty() ? std::span<const Range>(all) : args.columns) {
      for (int64_t column = range.begin; column < range.end; ++column) {
        const LinearReference r = ReferenceLinear(args, layer.weights, layer.x, token, column);
        const double y = args.y.Load(token, column);
        double fraction = std::fabs(y - r.value) / r.tolerance;
        if (std::isnan(fraction)) fraction = HUGE_VAL;
        if (fraction > worst) {
          worst = fraction;
          where = fmt::format("token {} column {}: {} instead of {}, tolerance {}", token, column,
                              y, r.value, r.tolerance);
        }
      }
    }
  }
  EXPECT_LE(worst, 1.0) << what << ": " << where;
}

void ExpectSameBits(const ConstView& a, const ConstView& b, const std::string& what) {
  ASSERT_EQ(a.shape(), b.shape());
  for (int64_t t = 0; t < a.Extent(0); ++t) {
    for (int64_t c = 0; c < a.Extent(1); ++c) {
      ASSERT_EQ(
          std::memcmp(a.Address(t, c), b.Address(t, c), static_cast<size_t>(DTypeBytes(a.dtype()))),
          0)
          << what << ": token " << t << " column " << c << ": " << a.Load(t, c) << " and "
          << b.Load(t, c);
    }
  }
}

class LinearTest : public testing::TargetTest {};

TEST_P(LinearTest, RaggedSizesAgainstDouble) {
  struct Size {
    int64_t tokens, in, out;
  };
  // Around register tiles (6, 12, 2), panels (16, 32), token tiles (96) and pieces of depth (256).
  for (const Size& s :
       {Size{1, 1, 1}, Size{1, 256, 16}, Size{5, 3, 17}, Size{6, 255, 15}, Size{13, 257, 31},
        Size{96, 16, 48}, Size{97, 600, 33}, Size{193, 7, 65}, Size{2, 1031, 530}}) {
    for (WeightType type : kWeightTypes) {
      const Layer layer({.tokens = s.tokens, .in = s.in, .out = s.out, .packed = type});
      Tensor y = layer.Output();
      const LinearArgs args = layer.Args(y);
      RunLayer(args);
      ExpectRight(
          args, layer,
          fmt::format("{} tokens {} -> {} as {}", s.tokens, s.in, s.out, WeightTypeName(type)));
    }
  }
}

TEST_P(LinearTest, EveryTypeOfInputWeightsAndOutput) {
  for (DType x : kAllTypes) {
    for (WeightType packed : kWeightTypes) {
      for (DType y_type : kAllTypes) {
        const Layer layer(
            {.tokens = 25, .in = 300, .out = 37, .x = x, .y = y_type, .packed = packed});
        Tensor y = layer.Output();
        const LinearArgs args = layer.Args(y);
        RunLayer(args);
        ExpectRight(args, layer,
                    fmt::format("x {} packed {} y {}", DTypeName(x), WeightTypeName(packed),
                                DTypeName(y_type)));
      }
    }
  }
}

TEST_P(LinearTest, Epilogues) {
  for (DType y_type : kAllTypes) {
    const Layer layer({.tokens = 20, .in = 50, .out = 41, .y = y_type});
    for (int bias = 0; bias < 2; ++bias) {
      for (Activation activation : {Activation::kNone, Activation::kGeluTanh, Activation::kSilu}) {
        for (int gate = 0; gate < 3; ++gate) {
          for (int residual = 0; residual < 2; ++residual) {
            Tensor y = layer.Output();
            LinearArgs args = layer.Args(y);
            if (bias) args.epilogue.bias = layer.Bias();
            args.epilogue.activation = activation;
            if (gate == 1) args.epilogue.gate = layer.gate.view();
            if (gate == 2) args.epilogue.gate = layer.token_gate.view();
            if (residual) args.epilogue.residual = layer.residual.view();
            RunLayer(args);
            ExpectRight(args, layer,
                        fmt::format("bias {} activation {} gate {} residual {}", bias,
                                    static_cast<int>(activation), gate, residual));
          }
        }
      }
    }
  }
}

TEST_P(LinearTest, ResidualMayBeTheOutput) {
  for (DType type : kAllTypes) {
    const Layer layer({.tokens = 100, .in = 300, .out = 40, .y = type});
    Tensor residual(type, {100, 40});
    Tensor y(type, {100, 40});
    for (int64_t t = 0; t < 100; ++t) {
      for (int64_t c = 0; c < 40; ++c) {
        residual.view().Store(layer.residual.view().Load(t, c), t, c);
        y.view().Store(layer.residual.view().Load(t, c), t, c);
      }
    }
    Tensor apart = layer.Output();
    LinearArgs args = layer.Args(apart);
    args.epilogue = {.bias = layer.Bias(), .gate = layer.gate, .residual = residual};
    RunLayer(args);
    args.y = y;
    args.epilogue.residual = y.view();
    RunLayer(args);
    ExpectSameBits(y, apart, "in place");
  }
}

TEST_P(LinearTest, OddStrides) {
  const Layer layer({.tokens = 30, .in = 70, .out = 35});
  Tensor plain = layer.Output();
  LinearArgs args = layer.Args(plain);
  args.epilogue = {.bias = layer.Bias(), .gate = layer.token_gate, .residual = layer.residual};
  RunLayer(args);

  // x transposed, then with rows from last to first; y in every third column of a larger tensor.
  Tensor columns(DType::kF32, {70, 30});
  for (int64_t t = 0; t < 30; ++t) {
    for (int64_t i = 0; i < 70; ++i) columns.view().Store(layer.x.view().Load(t, i), i, t);
  }
  Tensor large(DType::kF32, {31, 35 * 3});
  for (int64_t i = 0; i < large.Elements(); ++i) large.DataAs<float>()[i] = -7.0f;
  const View y(large.view().Address(1, 1), DType::kF32, {30, 35}, Strides{35 * 3, 3});
  args.x = ConstView(columns).Transpose(0, 1);
  args.y = y;
  RunLayer(args);
  ExpectSameBits(y, plain, "transposed x, y in columns");
  for (int64_t i = 0; i < large.Elements(); ++i) {
    const int64_t row = i / (35 * 3), column = i % (35 * 3);
    if (row > 0 && column % 3 == 1) continue;
    ASSERT_EQ(large.DataAs<float>()[i], -7.0f);
  }

  Tensor backwards(DType::kF32, {30, 70});
  for (int64_t t = 0; t < 30; ++t) {
    for (int64_t i = 0; i < 70; ++i) backwards.view().Store(layer.x.view().Load(t, i), 29 - t, i);
  }
  Tensor again = layer.Output();
  args.x = ConstView(backwards.view().Address(29, 0), DType::kF32, {30, 70}, Strides{-70, 1});
  args.y = again;
  RunLayer(args);
  ExpectSameBits(again, plain, "x backwards");

  // One row for all tokens.
  args.x = ConstView(layer.x.view().Data(), DType::kF32, {30, 70}, Strides{0, 1});
  args.epilogue = {};
  RunLayer(args);
  for (int64_t t = 1; t < 30; ++t) {
    ExpectSameBits(ConstView(again).Slice(0, {t, t + 1}), ConstView(again).Slice(0, {0, 1}),
                   "repeated row");
  }
}

TEST_P(LinearTest, ColumnSubsetsHaveTheBitsOfTheWholeAndTouchNothingElse) {
  for (WeightType packed : kWeightTypes) {
    const Layer layer({.tokens = 100, .in = 270, .out = 200, .packed = packed});
    Tensor whole = layer.Output();
    LinearArgs args = layer.Args(whole);
    args.epilogue = {.bias = layer.Bias(),
                     .activation = Activation::kSilu,
                     .gate = layer.gate,
                     .residual = layer.residual};
    RunLayer(args);
    const std::vector<std::vector<Range>> subsets = {{{0, 200}},
                                                     {{0, 1}},
                                                     {{199, 200}},
                                                     {{16, 32}, {64, 96}},
                                                     {{3, 5}, {7, 9}, {100, 161}},
                                                     {{8, 24}},
                                                     {{24, 48}, {48, 72}, {96, 120}}};
    for (const std::vector<Range>& subset : subsets) {
      Tensor y = layer.Output();
      const Tensor untouched = layer.Output();
      args.y = y;
      args.columns = subset;
      RunLayer(args);
      for (int64_t c = 0; c < 200; ++c) {
        bool wanted = false;
        for (const Range& range : subset) wanted |= range.Contains(c);
        ExpectSameBits(ConstView(y).Slice(1, {c, c + 1}),
                       (wanted ? ConstView(whole) : ConstView(untouched)).Slice(1, {c, c + 1}),
                       fmt::format("column {}", c));
      }
    }
  }
}

// Rows that hold some inputs only give what whole rows with zeros between give, also in pieces of
// any length, of bf16 weights, and from a producer; what lies between is not there to be read.
TEST_P(LinearTest, InputSubsetsHaveTheBitsOfZeros) {
  const std::vector<std::vector<Range>> subsets = {{{0, 600}},
                                                   {{8, 40}},
                                                   {{0, 128}, {256, 384}},
                                                   {{3, 4}, {5, 7}, {300, 599}},
                                                   {{0, 32}, {64, 96}, {128, 160}},
                                                   {{0, 0}}};
  for (WeightType packed : kWeightTypes) {
    const Layer layer({.tokens = 101, .in = 600, .out = 530, .packed = packed});
    for (const std::vector<Range>& inputs : subsets) {
      Tensor padded = Tensor::Zeros(DType::kF32, {101, 600});
      int64_t count = 0;
      for (const Range& range : inputs) count += range.size();
      Tensor compact(DType::kF32, {101, std::max<int64_t>(count, 1)});
      for (int64_t t = 0; t < 101; ++t) {
        int64_t at = 0;
        for (const Range& range : inputs) {
          for (int64_t i = range.begin; i < range.end; ++i) {
            padded.view().Store(layer.x.view().Load(t, i), t, i);
            compact.view().Store(layer.x.view().Load(t, i), t, at++);
          }
        }
      }
      Tensor expected = layer.Output(), viewed = layer.Output(), produced = layer.Output();
      const auto run = [&](Tensor& y, const LinearInput& x, std::span<const Range> subset) {
        LinearArgs args = layer.Args(y);
        args.x = x;
        args.inputs = subset;
        args.epilogue.bias = layer.Bias();
        args.epilogue.gate = layer.gate;
        args.epilogue.residual = layer.residual;
        RunLayer(args);
      };
      run(expected, ConstView(padded), {});
      const std::string what = fmt::format("{} inputs in {} ranges", count, inputs.size());
      run(viewed, ConstView(compact), inputs);
      ExpectSameBits(viewed, expected, what);
      auto producer = [&](int64_t, int64_t first, int64_t rows, float* to) {
        std::copy_n(compact.DataAs<float>() + first * count, rows * count, to);
      };
      run(produced, RowProducer(producer), inputs);
      ExpectSameBits(produced, expected, what);
    }
  }
}

TEST_P(LinearTest, SameBitsForAnyThreadsAndTokenByToken) {
  for (WeightType packed : kWeightTypes) {
    const DType type = packed == WeightType::kF32 ? DType::kF16 : DType::kBF16;
    const Layer layer({.tokens = 213, .in = 519, .out = 77, .x = type, .packed = packed});
    Tensor one = layer.Output();
    LinearArgs args = layer.Args(one);
    args.epilogue = {.bias = layer.Bias(),
                     .activation = Activation::kGeluTanh,
                     .gate = layer.gate,
                     .residual = layer.residual};
    RunLayer(args, 1);
    for (int threads : {2, 3, 8}) {
      Tensor y = layer.Output();
      args.y = y;
      RunLayer(args, threads);
      ExpectSameBits(y, one, fmt::format("{} threads", threads));
    }
    for (int64_t step : {1, 5, 64}) {
      Tensor y = layer.Output();
      for (int64_t t = 0; t < 213; t += step) {
        const Range part = {t, std::min<int64_t>(213, t + step)};
        LinearArgs some = args;
        some.x = ConstView(layer.x).Slice(0, part);
        some.y = y.view().Slice(0, part);
        some.epilogue.residual = ConstView(layer.residual).Slice(0, part);
        RunLayer(some, 1);
      }
      ExpectSameBits(y, one, fmt::format("{} tokens a call", step));
    }
  }
}

// Many tokens make tiles of more panels than sums that wait; few tokens make narrow ones.
TEST_P(LinearTest, WideTilesHaveTheBitsOfNarrowOnes) {
  const Layer layer({.tokens = 1601, .in = 19, .out = 597});
  Tensor wide = layer.Output(), narrow = layer.Output();
  LinearArgs args = layer.Args(wide);
  args.epilogue.activation = Activation::kSilu;
  RunLayer(args, 1);
  for (int64_t t = 0; t < 1601; t += 90) {
    const Range part = {t, std::min<int64_t>(1601, t + 90)};
    args.x = ConstView(layer.x).Slice(0, part);
    args.y = narrow.view().Slice(0, part);
    RunLayer(args, 1);
  }
  ExpectSameBits(narrow, wide, "90 tokens a call");
}

TEST_P(LinearTest, ProducerHasTheBitsOfTheViewAndIsAskedOncePerToken) {
  struct Size {
    int64_t tokens, in, out;
  };
  // The last is wide enough for several chunks.
  for (const Size& s : {Size{1, 5, 3}, Size{300, 70, 40}, Size{100, 90001, 1}}) {
    for (WeightType type : kWeightTypes) {
      const Layer layer({.tokens = s.tokens, .in = s.in, .out = s.out, .packed = type});
      Tensor from_view = layer.Output(), from_producer = layer.Output();
      LinearArgs args = layer.Args(from_view);
      args.epilogue.bias = layer.Bias();
      RunLayer(args);
      std::vector<int> asked(static_cast<size_t>(s.tokens), 0);
      std::mutex mutex;
      auto produce = [&](int64_t lane, int64_t first, int64_t count, float* rows) {
        EXPECT_EQ(lane, 0);
        const std::lock_guard lock(mutex);
        for (int64_t t = 0; t < count; ++t) ++asked[static_cast<size_t>(first + t)];
        std::memcpy(rows, layer.x.DataAs<float>() + first * s.in,
                    static_cast<size_t>(count * s.in) * sizeof(float));
      };
      args.x = RowProducer(produce);
      args.y = from_producer;
      RunLayer(args);
      ExpectSameBits(from_producer, from_view, fmt::format("{} inputs", s.in));
      for (int n : asked) ASSERT_EQ(n, 1);
    }
  }
}

TEST_P(LinearTest, PackedWeightsMayMove) {
  const Layer layer({.tokens = 10, .in = 30, .out = 20});
  Tensor here = layer.Output(), there = layer.Output();
  LinearArgs args = layer.Args(here);
  RunLayer(args);
  AlignedBuffer<std::byte> copy(layer.packed.size() + 192);
  std::memcpy(copy.data() + 192, layer.packed.data(), static_cast<size_t>(layer.packed.size()));
  args.weights = PackedLinear::View(copy.span().subspan(192));
  args.y = there;
  RunLayer(args);
  ExpectSameBits(there, here, "moved");
}

TEST_P(LinearTest, NanStaysInItsRowOrColumn) {
  for (WeightType type : kWeightTypes) {
    Layer layer({.tokens = 40, .in = 60, .out = 40, .packed = type});
    layer.x.view().Store(std::nanf(""), 17, 33);
    layer.weights.view().Store(std::nanf(""), 21, 5);
    ThreadPool pool(2);
    PackLinear(layer.weights, layer.size.packed, layer.packed.span(), pool);
    for (Activation activation : {Activation::kNone, Activation::kGeluTanh, Activation::kSilu}) {
      Tensor y = layer.Output();
      LinearArgs args = layer.Args(y);
      args.epilogue.activation = activation;
      RunLayer(args);
      for (int64_t t = 0; t < 40; ++t) {
        for (int64_t c = 0; c < 40; ++c) {
          ASSERT_EQ(std::isnan(y.view().Load(t, c)), t == 17 || c == 21) << t << " " << c;
        }
      }
    }
  }
}

// Every element of a plain layer against the same roundings done slowly: bit for bit, on every
// target.
void ExpectRoundedExactly(const Layer& layer, const std::string& what) {
  const Compute compute = ComputeOf(layer.size.packed);
  Tensor y = layer.Output();
  RunLayer(layer.Args(y));
  for (int64_t t = 0; t < layer.size.tokens; ++t) {
    for (int64_t c = 0; c < layer.size.out; ++c) {
      const float wanted = RoundedLinear(layer.weights, layer.x, t, c, compute);
      const float got = y.view().Load(t, c);
      ASSERT_EQ(std::memcmp(&got, &wanted, sizeof(float)), 0)
          << what << ", " << ComputeName(compute) << ": token " << t << " column " << c << ": "
          << got << " instead of " << wanted;
    }
  }
}

TEST_P(LinearTest, IntegersAreThoseOfASlowComputation) {
  struct Size {
    int64_t tokens, in, out;
  };
  // Around words (2, 4), groups (32, 64), parts (256, 512), register tiles and panels.
  for (const Size& s : {Size{1, 1, 1}, Size{7, 3, 17}, Size{13, 255, 33}, Size{12, 256, 32},
                        Size{5, 257, 16}, Size{25, 511, 48}, Size{6, 513, 5}, Size{97, 258, 40},
                        Size{3, 1030, 18}, Size{2, 2051, 3}}) {
    for (WeightType type : {WeightType::kInt16, WeightType::kInt8}) {
      const Layer layer({.tokens = s.tokens, .in = s.in, .out = s.out, .packed = type});
      WithAllProducts([&] {
        ExpectRoundedExactly(layer, fmt::format("{} tokens {} -> {}", s.tokens, s.in, s.out));
      });
    }
  }
}

// Around registers of AMX (16 tokens, 64 inputs), blocks of two, parts (512) and panels, and around
// the least that it takes (linear_tile.cc, AmxPays): it has the bits of pairs, with tokens that are
// huge or NaN among them.
TEST_P(LinearTest, Int8ByAmxHasTheSameBits) {
  if (!ProductsSupported(IntegerProducts::kAmx)) GTEST_SKIP() << "this machine lacks avx512amx";
  const auto expect_same = [](int64_t tokens, int64_t in, int64_t out) {
    Layer layer({.tokens = tokens, .in = in, .out = out, .packed = WeightType::kInt8});
    if (tokens > 15) {
      layer.x.view().Store(std::nanf(""), 15, in - 1);
      for (int64_t i = 0; i < in; ++i)
        layer.x.view().Store(1e30f * layer.x.view().Load(7, i), 7, i);
    }
    Tensor plain = layer.Output(), wanted = layer.Output();
    for (const Activation activation : {Activation::kNone, Activation::kGeluTanh}) {
      LinearArgs args = layer.Args(wanted);
      args.epilogue.activation = activation;
      SetProducts(IntegerProducts::kPairs);
      RunLayer(args, 1);
      SetProducts(IntegerProducts::kAmx);
      args.y = plain;
      RunLayer(args, 3);
      ExpectSameBits(plain, wanted, fmt::format("{} tokens {} -> {}", tokens, in, out));
    }
  };
  for (int64_t tokens : {1, 8, 15, 17, 31, 97}) {
    for (int64_t in : {1, 3, 63, 65, 192, 195, 511, 513, 1536}) {
      for (int64_t out : {1, 15, 17, 33}) expect_same(tokens, in, out);
    }
  }
  expect_same(17, 8960, 17);
  expect_same(50, 192, 576);
}

// Numbers that are hard to round: one huge token, one constant channel, zeros, numbers too small
// for an inverse, ties, and rows that are all at the top, of one sign and of both.
TEST_P(LinearTest, IntegersOfHardNumbers) {
  constexpr int64_t kIn = 1300;
  for (WeightType type : {WeightType::kInt16, WeightType::kInt8}) {
    const auto top = static_cast<float>(RoundingTop(ComputeOf(type)));
    Layer layer({.tokens = 10, .in = kIn, .out = 20, .packed = type});
    const View x = layer.x, w = layer.weights;
    for (int64_t i = 0; i < kIn; ++i) {
      const float sign = i % 2 == 0 ? 1.0f : -1.0f;
      x.Store(x.Load(0, i) * 1e30f, 0, i);
      x.Store(0.0f, 1, i);
      x.Store(1e-42f * sign, 2, i);
      x.Store(3.0f, 3, i);
      x.Store(-3.0f, 4, i);
      x.Store(sign, 5, i);
      // Ties: halves of steps of a row whose largest number is the top.
      x.Store(i == 0 ? top : static_cast<float>(i % 100) + 0.5f, 6, i);
      w.Store(5.0f, 0, i);
      w.Store(-5.0f, 1, i);
      w.Store(sign, 2, i);
      w.Store(i == 7 ? 1000.0f : w.Load(3, i), 3, i);
    }
    for (int64_t t = 0; t < 10; ++t) x.Store(50.0f, t, 11);
    ThreadPool pool(1);
    PackLinear(layer.weights, type, layer.packed.span(), pool);
    WithAllProducts([&] { ExpectRoundedExactly(layer, "hard numbers"); });
  }
}

// The longest exact sum: a whole part of products of tops, of either sign, stays in int32, and so
// does one that VNNI offsets by 128 times the sum of the weights.
TEST_P(LinearTest, SumsOfTopsStayInRange) {
  for (WeightType type : {WeightType::kInt16, WeightType::kInt8}) {
    const Compute compute = ComputeOf(type);
    const int64_t in = 2 * PartInputs(compute) + 5;
    Layer layer({.tokens = 2, .in = in, .out = 2, .packed = type});
    for (int64_t i = 0; i < in; ++i) {
      layer.x.view().Store(1.0f, 0, i);
      layer.x.view().Store(-1.0f, 1, i);
      layer.weights.view().Store(1.0f, 0, i);
      layer.weights.view().Store(-1.0f, 1, i);
    }
    ThreadPool pool(1);
    PackLinear(layer.weights, type, layer.packed.span(), pool);
    WithAllProducts([&] { ExpectRoundedExactly(layer, "tops"); });
    Tensor y = layer.Output();
    RunLayer(layer.Args(y));
    for (int64_t t = 0; t < 2; ++t) {
      for (int64_t c = 0; c < 2; ++c) {
        const float wanted = static_cast<float>(in) * (t == c ? 1.0f : -1.0f);
        EXPECT_NEAR(y.view().Load(t, c), wanted, 1e-3f * static_cast<float>(in));
      }
    }
  }
}

// int16 rounds finer than bf16, with one huge channel too; int8 as eight bits do.
TEST_P(LinearTest, IntegersAreAsFineAsTheirBits) {
  const auto error = [](Layer& layer) {
    Tensor y = layer.Output();
    RunLayer(layer.Args(y));
    double off = 0.0, all = 0.0;
    for (int64_t t = 0; t < layer.size.tokens; ++t) {
      for (int64_t c = 0; c < layer.size.out; ++c) {
        double exact = 0.0;
        for (int64_t i = 0; i < layer.size.in; ++i) {
          exact += double{layer.x.view().Load(t, i)} * double{layer.weights.view().Load(c, i)};
        }
        off += std::pow(y.view().Load(t, c) - exact, 2);
        all += exact * exact;
      }
    }
    return std::sqrt(off / all);
  };
  for (int64_t in : {192, 1536, 8960}) {
    Layer fine({.tokens = 6, .in = in, .out = 16, .packed = WeightType::kInt16});
    Layer coarse({.tokens = 6, .in = in, .out = 16, .packed = WeightType::kInt8});
    EXPECT_LT(error(fine), 7e-4) << in;
    EXPECT_GT(error(fine), 1e-4) << in;
    EXPECT_LT(error(coarse), 1.6e-2) << in;
    EXPECT_GT(error(coarse), 3e-3) << in;
  }
}

EQUITILE_TEST_ON_ALL_TARGETS(LinearTest);

TEST(Linear, EightThreadsAreEight) {
  const Layer layer({.tokens = 256, .in = 8, .out = 8});
  Tensor y = layer.Output();
  LinearArgs args = layer.Args(y);
  std::set<std::thread::id> ids;
  std::mutex mutex;
  auto produce = [&](int64_t, int64_t, int64_t count, float* rows) {
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
    std::fill_n(rows, count * 8, 1.0f);
  };
  args.x = RowProducer(produce);
  RunLayer(args, 8);
  EXPECT_EQ(ids.size(), 8u);
}

TEST(Linear, NoTokens) {
  const Layer layer({.tokens = 0});
  Tensor y = layer.Output();
  EXPECT_NO_THROW(RunLayer(layer.Args(y)));
}

TEST(Linear, AWorkspaceServesCallsOfAnySize) {
  ThreadPool pool(2);
  Workspace workspace;
  for (int64_t tokens : {300, 3, 150}) {
    const Layer layer({.tokens = tokens, .in = 20 * tokens, .out = 20});
    Tensor y = layer.Output();
    const LinearArgs args = layer.Args(y);
    Linear(args, pool, workspace);
    ExpectRight(args, layer, fmt::format("{} tokens", tokens));
  }
  EXPECT_GT(workspace.Bytes(), 0);
}

TEST(Linear, RefusesWhatDoesNotFit) {
  const Layer layer({.tokens = 7, .in = 40, .out = 33});
  Tensor y = layer.Output();
  const LinearArgs good = layer.Args(y);
  EXPECT_NO_THROW(RunLayer(good));
  auto refused = [&](auto change) {
    LinearArgs args = good;
    change(args);
    EXPECT_THROW(RunLayer(args), InputError);
  };
  refused([](LinearArgs& a) { a.weights = {}; });
  refused([](LinearArgs& a) { a.x = LinearInput(); });
  refused([](LinearArgs& a) { a.x.view = a.x.view.Slice(1, {0, 39}); });
  refused([](LinearArgs& a) { a.x.view = a.x.view.Slice(0, {0, 6}); });
  refused([](LinearArgs& a) { a.x.view = a.x.view.Select(0, 0); });
  refused([](LinearArgs& a) { a.y = a.y.Slice(1, {0, 32}); });
  refused([](LinearArgs& a) { a.y = a.y.Select(0, 0); });
  refused([&](LinearArgs& a) { a.epilogue.bias = layer.Bias().first(32); });
  refused([&](LinearArgs& a) { a.epilogue.gate = layer.gate.view().Slice(0, {0, 32}); });
  refused([&](LinearArgs& a) { a.epilogue.gate = layer.x.view(); });
  refused([&](LinearArgs& a) { a.epilogue.gate = layer.gate.view().Select(0, 0); });
  refused([&](LinearArgs& a) { a.epilogue.residual = layer.gate.view(); });
  auto produce = [](int64_t, int64_t, int64_t, float*) {};
  refused([&](LinearArgs& a) { a.x.producer = produce; });
  for (const std::vector<Range>& columns : std::vector<std::vector<Range>>{
           {{0, 34}}, {{-1, 3}}, {{4, 4}}, {{8, 16}, {0, 4}}, {{0, 9}, {8, 10}}}) {
    refused([&](LinearArgs& a) { a.columns = columns; });
  }
}

}  // namespace
}  // namespace equitile

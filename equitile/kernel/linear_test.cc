#include "equitile/kernel/linear.h"

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
  DType x = DType::kF32, packed = DType::kF32, y = DType::kF32;
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
    const Layer layer({.tokens = s.tokens, .in = s.in, .out = s.out});
    Tensor y = layer.Output();
    const LinearArgs args = layer.Args(y);
    RunLayer(args);
    ExpectRight(args, layer, fmt::format("{} tokens {} -> {}", s.tokens, s.in, s.out));
  }
}

TEST_P(LinearTest, EveryTypeOfInputWeightsAndOutput) {
  for (DType x : kAllTypes) {
    for (DType packed : {DType::kF32, DType::kBF16}) {
      for (DType y_type : kAllTypes) {
        const Layer layer(
            {.tokens = 25, .in = 300, .out = 37, .x = x, .packed = packed, .y = y_type});
        Tensor y = layer.Output();
        const LinearArgs args = layer.Args(y);
        RunLayer(args);
        ExpectRight(
            args, layer,
            fmt::format("x {} packed {} y {}", DTypeName(x), DTypeName(packed), DTypeName(y_type)));
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
  for (DType packed : {DType::kF32, DType::kBF16}) {
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
  for (DType packed : {DType::kF32, DType::kBF16}) {
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
  for (DType type : kAllTypes) {
    const Layer layer({.tokens = 213, .in = 519, .out = 77, .x = type, .packed = DType::kBF16});
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
    const Layer layer({.tokens = s.tokens, .in = s.in, .out = s.out});
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
  Layer layer({.tokens = 40, .in = 60, .out = 40});
  layer.x.view().Store(std::nanf(""), 17, 33);
  layer.weights.view().Store(std::nanf(""), 21, 5);
  ThreadPool pool(2);
  PackLinear(layer.weights, DType::kF32, layer.packed.span(), pool);
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

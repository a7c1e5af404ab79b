#include "equitile/kernel/rows/strips.h"

#include <bit>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "equitile/base/aligned_buffer.h"
#include "equitile/base/rng.h"
#include "equitile/kernel/target_testing.h"
#include "equitile/pattern/token_grid.h"
#include "equitile/tensor/tensor.h"

namespace equitile {
namespace {

constexpr Lanes kLanes = {.batch = 2, .heads = 3};

// Where element (token of the strip, dim) lies in a strip.
int64_t PlaceInStrip(StripLayout layout, int64_t token, int64_t dim) {
  return layout == StripLayout::kQuery ? dim * 16 + token : dim / 16 * 256 + token * 16 + dim % 16;
}

class StripsTest : public testing::TargetTest {
 protected:
  // Packs the strips and compares every float with what the contract says, by `at(lane, token,
  // dim)`.
  template <typename At>
  void ExpectPacked(PackArgs args, const At& at) {
    const int64_t all = CeilDiv(args.tokens, kStripTokens);
    const int64_t strip_floats = StripBytes(args.head_dim) / static_cast<int64_t>(sizeof(float));
    for (const StripLayout layout : {StripLayout::kQuery, StripLayout::kKey}) {
      for (const Range strips : {Range{0, all}, Range{all - 1, all}, Range{all / 2, all / 2 + 1}}) {
        args.layout = layout;
        args.strips = strips;
        AlignedBuffer<float> packed(strips.size() * strip_floats + 16);
        for (float& x : packed.span()) x = -77.0f;
        PackStrips(args, reinterpret_cast<std::byte*>(packed.data()));
        for (int64_t s = 0; s < strips.size(); ++s) {
          for (int64_t t = 0; t < kStripTokens; ++t) {
            const int64_t position = (strips.begin + s) * kStripTokens + t;
            for (int64_t dim = 0; dim < strip_floats / 16; ++dim) {
              float want = 0.0f;
              if (position < args.tokens && dim < args.head_dim) {
                want =
                    at(args.lane,
                       args.token_at_position ? args.token_at_position[position] : position, dim);
              }
              const float got = packed[s * strip_floats + PlaceInStrip(layout, t, dim)];
              ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want))
                  << "lane " << args.lane << ", position " << position << ", dim " << dim << ": "
                  << got << " for " << want;
            }
          }
        }
        for (int64_t i = 0; i < 16; ++i)
          ASSERT_EQ(packed[strips.size() * strip_floats + i], -77.0f) << "written past the end";
      }
    }
  }
};

Tensor RandomTensor(DType dtype, const Shape& shape) {
  Tensor tensor(dtype, shape);
  const View flat = tensor.view().Reshape({shape.Elements()});
  const Rng rng(5);
  for (int64_t i = 0; i < shape.Elements(); ++i)
    flat.Store(rng.NormalAt(static_cast<uint64_t>(i)), i);
  return tensor;
}

auto ElementsOf(const ConstView& view) {
  return [&view](int64_t lane, int64_t token, int64_t dim) {
    return view.Load(kLanes.BatchOf(lane), token, kLanes.HeadOf(lane), dim);
  };
}

TEST_P(StripsTest, FromViewsOfEveryDTypeAndLength) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (int64_t tokens : {1, 15, 16, 17, 53}) {
      for (int64_t head_dim : {8, 16, 24, 72, 512}) {
        const Tensor tensor = RandomTensor(dtype, {2, tokens, 3, head_dim});
        const ConstView view = tensor;
        const TokenSource source(view);
        ExpectPacked(
            {.source = &source, .lanes = kLanes, .lane = 4, .tokens = tokens, .head_dim = head_dim},
            ElementsOf(view));
      }
    }
  }
}

TEST_P(StripsTest, FromStridedViews) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Tensor tensor = RandomTensor(dtype, {2, 3, 2 * 35, 40});
    // [batch, heads, tokens, dim] seen as [batch, tokens, heads, dim]; every other token,
    // backwards; [batch, dim, heads, tokens] seen likewise: a head_dim that is not contiguous.
    const ConstView bhtd = ConstView(tensor).Transpose(1, 2).Slice(1, {3, 38});
    const ConstView backwards(bhtd.Address(0, 34, 0, 0), dtype, {2, 17, 3, 40},
                              {bhtd.Stride(0), -2 * bhtd.Stride(1), bhtd.Stride(2), 1});
    const ConstView dim_apart =
        ConstView(tensor).Transpose(1, 2).Transpose(1, 3).Slice(3, {6, 70}).Slice(1, {0, 35});
    for (const ConstView& view : {bhtd, backwards, dim_apart}) {
      const TokenSource source(view);
      for (int64_t lane = 0; lane < kLanes.Count(); ++lane) {
        ExpectPacked({.source = &source,
                      .lanes = kLanes,
                      .lane = lane,
                      .tokens = view.Extent(1),
                      .head_dim = view.Extent(3)},
                     ElementsOf(view));
      }
    }
  }
}

TEST_P(StripsTest, NanAndInfinityArriveAsTheyAre) {
  Tensor tensor = RandomTensor(DType::kF32, {2, 20, 3, 24});
  tensor.view().Store(std::bit_cast<float>(0x7FC12345u), 1, 3, 1, 5);
  tensor.view().Store(-std::numeric_limits<float>::infinity(), 1, 19, 1, 23);
  tensor.view().Store(1e-42f, 1, 4, 1, 0);
  const ConstView view = tensor;
  const TokenSource source(view);
  ExpectPacked({.source = &source, .lanes = kLanes, .lane = 4, .tokens = 20, .head_dim = 24},
               ElementsOf(view));
}

TEST_P(StripsTest, InEveryTokenOrder) {
  const TokenGrid grid = {.frames = 3, .height = 2, .width = 5, .text_before = 6, .text_after = 3};
  const Tensor tensor = RandomTensor(DType::kF32, {2, grid.Tokens(), 3, 24});
  const ConstView view = tensor;
  auto produce = [&](int64_t lane, int64_t first, int64_t count, float* rows) {
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t dim = 0; dim < 24; ++dim)
        rows[t * 24 + dim] = ElementsOf(view)(lane, first + t, dim);
    }
  };
  for (const TokenOrder order : kAxisOrders) {
    const std::vector<int32_t> token_at_position = TokenAtPosition(grid, order);
    for (const TokenSource& source : {TokenSource(view), TokenSource(RowProducer(produce))}) {
      ExpectPacked({.source = &source,
                    .lanes = kLanes,
                    .lane = 2,
                    .tokens = grid.Tokens(),
                    .head_dim = 24,
                    .token_at_position = token_at_position.data()},
                   ElementsOf(view));
    }
  }
}

// A producer is asked for runs of consecutive tokens, each token once, never for one that does not
// exist.
TEST_P(StripsTest, ProducersAreAskedForRuns) {
  constexpr int64_t kTokens = 41;
  std::vector<int32_t> order(kTokens);
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[5], order[9]);
  std::vector<int> asked(kTokens, 0);
  int calls = 0;
  auto produce = [&](int64_t lane, int64_t first, int64_t count, float* rows) {
    EXPECT_EQ(lane, 1);
    ASSERT_GE(first, 0);
    ASSERT_LE(first + count, kTokens);
    ++calls;
    for (int64_t t = 0; t < count; ++t) ++asked[static_cast<size_t>(first + t)];
    std::fill(rows, rows + count * 16, 1.0f);
  };
  const TokenSource source{RowProducer(produce)};
  AlignedBuffer<std::byte> packed(3 * StripBytes(16));
  PackStrips({.source = &source,
              .lanes = kLanes,
              .lane = 1,
              .tokens = kTokens,
              .head_dim = 16,
              .token_at_position = order.data(),
              .strips = {0, 3}},
             packed.data());
  EXPECT_EQ(asked, std::vector<int>(kTokens, 1));
  // 0-4, 9, 6-8, 5, 10-15 | 16-31 | 32-40
  EXPECT_EQ(calls, 7);
}

// A token that has travelled alone is packed to the bytes that it would have had at home.
TEST_P(StripsTest, TokensThatTravelAloneArePackedAlike) {
  for (const Compute compute : {Compute::kInt16, Compute::kInt8}) {
    for (const int64_t head_dim : {8, 24, 32, 128, 200}) {
      for (const StripLayout layout :
           {StripLayout::kQuery, StripLayout::kKey, StripLayout::kValue}) {
        SCOPED_TRACE(std::to_string(head_dim));
        std::vector<float> home(static_cast<size_t>(kStripTokens * head_dim)), arrived = home;
        float* rows = home.data();
        for (uint64_t seed = 1; seed <= 40; ++seed) {
          Rng rng(seed);
          for (int64_t t = 0; t < kStripTokens; ++t) {  // from far below kSmallestToken to huge
            for (int64_t i = 0; i < head_dim; ++i)
              rows[t * head_dim + i] =
                  t == 3 ? 0.0f : std::ldexp(rng.Normal(), static_cast<int>(14 * (t - 8)));
          }
          rows[5 * head_dim] = -rows[5 * head_dim + 1];  // two that are largest, perhaps
          rows[6 * head_dim + 2] = std::numeric_limits<float>::quiet_NaN();
          rows[7 * head_dim + 2] = std::numeric_limits<float>::infinity();
          const TokenRounding rounding{.layout = layout, .compute = compute, .head_dim = head_dim};
          std::vector<std::byte> wire(static_cast<size_t>(RoundedTokenBytes(head_dim, compute)));
          for (int64_t t = 0; t < kStripTokens; ++t) {
            RoundToken(rounding, rows + t * head_dim, wire.data());
            UnroundToken(rounding, wire.data(), arrived.data() + t * head_dim);
          }
          const auto packed = [&](const std::vector<float>& from) {
            const TokenSource source(ConstView(from.data(), {1, kStripTokens, 1, head_dim}));
            AlignedBuffer<std::byte> bytes(StripBytes(head_dim, compute));
            PackStrips({.layout = layout,
                        .compute = compute,
                        .source = &source,
                        .lanes = {.batch = 1, .heads = 1},
                        .lane = 0,
                        .tokens = kStripTokens,
                        .head_dim = head_dim,
                        .token_at_position = nullptr,
                        .strips = {0, 1}},
                       bytes.data());
            return std::vector<std::byte>(bytes.span().begin(), bytes.span().end());
          };
          ASSERT_TRUE(packed(arrived) == packed(home)) << "seed " << seed;
        }
      }
    }
  }
}

EQUITILE_TEST_ON_ALL_TARGETS(StripsTest);

}  // namespace
}  // namespace equitile

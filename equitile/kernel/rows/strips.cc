#include "equitile/kernel/rows/strips.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "equitile/base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/rows/strips.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/rows/int_strips-inl.h"
#include "equitile/kernel/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// The row of one token as f32: in place where the view holds it so, else converted into scratch
// [head_dim].
template <class T>
HWY_INLINE const float* RowOfView(const T* from, int64_t dim_stride, size_t head_dim,
                                  float* scratch) {
  if (dim_stride == 1) {
    if constexpr (std::is_same_v<T, float>) {
      return from;
    } else {
      ToFloats(from, head_dim, scratch);
    }
  } else {
    for (size_t i = 0; i < head_dim; ++i)
      scratch[i] = ToFloat(from[static_cast<int64_t>(i) * dim_stride]);
  }
  return scratch;
}

// The rows of strip `strip`, 16 pointers to [head_dim] f32; zeros beyond the last token. scratch:
// [16][head_dim].
template <class T>
void RowsFromView(const PackArgs& args, int64_t strip, float* scratch, const float** rows) {
  const ConstView& view = args.source->view;
  const int64_t batch = args.lanes.BatchOf(args.lane), head = args.lanes.HeadOf(args.lane);
  const auto head_dim = static_cast<size_t>(args.head_dim);
  const T* base =
      static_cast<const T*>(view.Data()) + batch * view.Stride(0) + head * view.Stride(2);
  for (int64_t t = 0; t < kStripTokens; ++t) {
    const int64_t position = strip * kStripTokens + t;
    if (position >= args.tokens) {
      rows[t] = kZeroRow;
      continue;
    }
    const int64_t token = args.token_at_position ? args.token_at_position[position] : position;
    rows[t] = RowOfView(base + token * view.Stride(1), view.Stride(3), head_dim,
                        scratch + static_cast<size_t>(t) * head_dim);
  }
}

// The same from a producer, called once per run of consecutive tokens.
void RowsFromProducer(const PackArgs& args, int64_t strip, float* scratch, const float** rows) {
  const int64_t begin = strip * kStripTokens;
  const int64_t count = std::min(kStripTokens, args.tokens - begin);
  auto token = [&](int64_t t) {
    return args.token_at_position ? args.token_at_position[begin + t] : begin + t;
  };
  for (int64_t t = 0; t < count;) {
    int64_t run = 1;
    while (t + run < count && token(t + run) == token(t) + run) ++run;
    args.source->producer(args.lane, token(t), run, scratch + t * args.head_dim);
    t += run;
  }
  for (int64_t t = 0; t < kStripTokens; ++t)
    rows[t] = t < count ? scratch + t * args.head_dim : kZeroRow;
}

// Token by token: whole rows are read at a stretch, which the hardware's prefetchers follow.
void WriteKeyValueStrip(const float* const* rows, size_t head_dim, float* out) {
  const DT d;
  for (size_t t = 0; t < 16; ++t, out += 16) {
    const float* HWY_RESTRICT row = rows[t];
    for (size_t i = 0; i < head_dim; i += kTransposeFloats) {
      hn::StoreU(hn::LoadU(d, row + i), d, out + i / 16 * 256 + i % 16);
    }
    if (head_dim % 16 != 0) std::fill_n(out + head_dim / 16 * 256 + 8, 8, 0.0f);
  }
}

void PackStripsT(const PackArgs& args, std::byte* to) {
  alignas(64) float scratch[kStripTokens * kMaxHeadDim];
  const float* rows[kStripTokens];
  const int64_t pitch = args.pitch != 0 ? args.pitch : StripBytes(args.head_dim, args.compute);
  for (int64_t strip = args.strips.begin; strip < args.strips.end; ++strip, to += pitch) {
    auto* out = reinterpret_cast<float*>(to);
    if (args.source->IsProducer()) {
      RowsFromProducer(args, strip, scratch, rows);
    } else if (args.source->view.dtype() == DType::kF32) {
      RowsFromView<float>(args, strip, scratch, rows);
    } else if (args.source->view.dtype() == DType::kBF16) {
      RowsFromView<Bf16>(args, strip, scratch, rows);
    } else {
      RowsFromView<F16>(args, strip, scratch, rows);
    }
    const auto head_dim = static_cast<size_t>(args.head_dim);
    if (args.compute != Compute::kF32) {
      if (args.center != nullptr) SubtractFromRows(args.center, head_dim, scratch, rows);
      WriteIntStrip(args.layout, args.compute, rows, args.head_dim, to);
    } else if (args.layout != StripLayout::kQuery) {
      WriteKeyValueStrip(rows, head_dim, out);
    } else {
      RowsToColumns(rows, head_dim, out);
      std::fill(out + head_dim * 16, out + RoundUp(args.head_dim, 16) * 16, 0.0f);
    }
  }
}

// Integers per unit of a token with this largest magnitude.
float FactorOf(const TokenRounding& rounding, float largest) {
  const bool value = rounding.layout == StripLayout::kValue;
  const int32_t top =
      value ? ValueTop(rounding.compute) : KeyTop(rounding.head_dim, rounding.compute);
  HWY_ALIGN float all[16], scale[16], factor[16];
  std::fill_n(all, 16, largest);
  ScalesOf(value, static_cast<float>(top), all, scale, factor);
  return factor[0];
}

template <class T>
void RoundTokenAs(const TokenRounding& rounding, const float* row, std::byte* to) {
  const auto dims = static_cast<size_t>(rounding.head_dim);
  const float largest = LargestOf(row, dims);
  if (!(largest < kNotFinite)) row = kZeroRow;
  RoundRow(row, FactorOf(rounding, largest), dims, dims, reinterpret_cast<T*>(to));
  std::memcpy(to + dims * sizeof(T), &largest, sizeof(largest));
}

// Where an integer is as large as any of the token stood its largest number, or one that rounds
// alike.
template <class T>
void UnroundTokenAs(const TokenRounding& rounding, const std::byte* from, float* row) {
  const auto dims = static_cast<size_t>(rounding.head_dim);
  const auto* integers = reinterpret_cast<const T*>(from);
  float largest = 0;
  std::memcpy(&largest, from + dims * sizeof(T), sizeof(largest));
  if (!(largest < kNotFinite)) {
    std::fill_n(row, dims, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const float unit = 1.0f / FactorOf(rounding, largest);
  int32_t most = 1;
  for (size_t i = 0; i < dims; ++i) most = std::max(most, std::abs(int32_t{integers[i]}));
  for (size_t i = 0; i < dims; ++i) {
    const int32_t integer = integers[i];
    row[i] = integer == most    ? largest
             : integer == -most ? -largest
                                : static_cast<float>(integer) * unit;
  }
}

void RoundTokenT(const TokenRounding& rounding, const float* row, std::byte* to) {
  rounding.compute == Compute::kInt8 ? RoundTokenAs<int8_t>(rounding, row, to)
                                     : RoundTokenAs<int16_t>(rounding, row, to);
}

void UnroundTokenT(const TokenRounding& rounding, const std::byte* from, float* row) {
  rounding.compute == Compute::kInt8 ? UnroundTokenAs<int8_t>(rounding, from, row)
                                     : UnroundTokenAs<int16_t>(rounding, from, row);
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(PackStripsT);
HWY_EXPORT(RoundTokenT);
HWY_EXPORT(UnroundTokenT);
}  // namespace

void PackStrips(const PackArgs& args, std::byte* out) {
  EQ_CHECK(!args.source->IsStrips(), "strips are packed already");
  HWY_DYNAMIC_DISPATCH(PackStripsT)(args, out);
}

void RoundToken(const TokenRounding& rounding, const float* row, std::byte* to) {
  HWY_DYNAMIC_DISPATCH(RoundTokenT)(rounding, row, to);
}

void UnroundToken(const TokenRounding& rounding, const std::byte* from, float* row) {
  HWY_DYNAMIC_DISPATCH(UnroundTokenT)(rounding, from, row);
}

}  // namespace equitile
#endif  // HWY_ONCE

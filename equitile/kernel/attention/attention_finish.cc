#include <algorithm>
#include <cmath>
#include <limits>

#include "equitile/kernel/attention/attention_group.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "equitile/kernel/attention/attention_finish.cc"
#include "hwy/foreach_target.h"

#include "equitile/kernel/attention/attention_int_strips-inl.h"
#include "equitile/kernel/attention/attention_masses-inl.h"
#include "equitile/kernel/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// Whether all rows start where a vector may be streamed to.
bool Aligned(const View& out) {
  constexpr int64_t kFloats = static_cast<int64_t>(kTransposeFloats);
  const bool strides =
      out.Stride(0) % kFloats == 0 && out.Stride(1) % kFloats == 0 && out.Stride(2) % kFloats == 0;
  return strides &&
         reinterpret_cast<uintptr_t>(out.Data()) % (kTransposeFloats * sizeof(float)) == 0;
}

// Divides by the sum and writes 16 queries, or fewer at the end, to their tokens.
template <class T>
void WriteStrip(const QueryGroup& group, const float* o, const float* factor, int64_t first_q,
                int64_t count) {
  const AttentionArgs& args = group.args;
  const View& out = args.out;
  const int32_t* order = args.QOrder(group.lane);
  T* base = static_cast<T*>(out.Data()) + args.lanes.BatchOf(group.lane) * out.Stride(0) +
            args.lanes.HeadOf(group.lane) * out.Stride(2);
  const int64_t dim_stride = out.Stride(3);
  const bool plain = std::is_same_v<T, float> && dim_stride == 1;
  const bool stream = plain && args.out.Elements() >= kStreamFloats && Aligned(out);
  const bool in_place = plain && !stream;
  T* to[kStripTokens];
  float* row[kStripTokens];
  for (int64_t t = 0; t < kStripTokens; ++t) {
    const int64_t position = first_q + t;
    to[t] = t < count ? base + (order ? order[position] : position) * out.Stride(1) : nullptr;
    row[t] = in_place && t < count ? reinterpret_cast<float*>(to[t])
                                   : group.memory.rows + t * args.head_dim;
  }
  ColumnsToRows(o, factor, static_cast<size_t>(args.head_dim), row);
  if (in_place) return;
  if (stream) {
    const DT d;
    for (int64_t t = 0; t < count; ++t) {
      auto* line = reinterpret_cast<float*>(to[t]);
      for (int64_t i = 0; i < args.head_dim; i += kTransposeFloats)
        hn::Stream(hn::Load(d, row[t] + i), d, line + i);
    }
    return;
  }
  for (int64_t t = 0; t < count; ++t) {
    if (dim_stride == 1) {
      FromFloats(row[t], static_cast<size_t>(args.head_dim), to[t]);
    } else {
      for (int64_t i = 0; i < args.head_dim; ++i) to[t][i * dim_stride] = FromFloat<T>(row[t][i]);
    }
  }
}

// In double, so that the rounding to f32 hides which libm computed it.
float LogSumExp(float maximum, float sum) {
  const double value =
      static_cast<double>(maximum) * 0.6931471805599453 + std::log(static_cast<double>(sum));
  return sum == 0.0f ? -std::numeric_limits<float>::infinity() : static_cast<float>(value);
}

// The same for output that has a place per strip.
void WriteToTable(const QueryGroup& group, const float* o, const float* factor, const float* lse,
                  int64_t first_q, int64_t count) {
  const AttentionArgs& args = group.args;
  const OutputTable& table = args.out_strips;
  const OutputStrip& to = table.At(group.lane, first_q / kStripTokens);
  float* row[kStripTokens];
  for (int64_t t = 0; t < kStripTokens; ++t)
    row[t] =
        t < count && !table.merge ? to.out + t * to.stride : group.memory.rows + t * args.head_dim;
  ColumnsToRows(o, factor, static_cast<size_t>(args.head_dim), row);
  for (int64_t t = 0; t < count; ++t) {
    if (table.merge) {
      MergePartial(to.out + t * to.stride, to.lse + t, row[t], lse + t, 1, args.head_dim);
    } else {
      to.lse[t] = lse[t];
    }
  }
}

// What taking the center from all keys took from the scores of 16 queries.
void AddCenter(const QueryGroup& group, int64_t strip, const float* center, float* lse) {
  const float* const q = QueryFloats(group, strip);
  for (size_t at = 0; at < 16; at += kVecFloats) {
    VF dot = hn::Zero(DF());
    for (int64_t dim = 0; dim < group.args.head_dim; ++dim) {
      const VF x = hn::Load(DF(), q + dim * 16 + static_cast<int64_t>(at));
      dot = hn::MulAdd(x, hn::Set(DF(), center[dim]), dot);
    }
    const VF shifted = hn::MulAdd(dot, hn::Set(DF(), group.args.scale), hn::LoadU(DF(), lse + at));
    hn::StoreU(shifted, DF(), lse + at);
  }
}

void FinishStrip(const QueryGroup& group, int64_t strip) {
  const AttentionArgs& args = group.args;
  const GroupMemory& memory = group.memory;
  const float* const o = memory.o + strip * OutputStripFloats(args.head_dim);
  const float* const sum = memory.sum + strip * kStripTokens;
  const int64_t first_q = group.FirstToken(strip);
  const int64_t count = std::min(kStripTokens, args.grid.q_tokens - first_q);
  HWY_ALIGN float factor[kStripTokens];
  float lse[kStripTokens];
  for (int64_t t = 0; t < kStripTokens; ++t) {
    factor[t] = sum[t] == 0.0f ? 0.0f : 1.0f / sum[t];
    lse[t] = LogSumExp(memory.maximum[strip * kStripTokens + t], sum[t]);
  }
  // Rows that attend to nothing have no scores; their log-sum-exp stays -inf, whatever the queries.
  const float* const center = args.KCenter(group.lane);
  if (center != nullptr && group.begun) AddCenter(group, strip, center, lse);
  if (args.out_strips.Used()) return WriteToTable(group, o, factor, lse, first_q, count);
  switch (args.out.dtype()) {
    case DType::kF32:
      WriteStrip<float>(group, o, factor, first_q, count);
      break;
    case DType::kBF16:
      WriteStrip<Bf16>(group, o, factor, first_q, count);
      break;
    case DType::kF16:
      WriteStrip<F16>(group, o, factor, first_q, count);
      break;
  }
  if (args.lse == nullptr) return;
  const int32_t* order = args.QOrder(group.lane);
  for (int64_t t = 0; t < count; ++t) {
    const int64_t token = order ? order[first_q + t] : first_q + t;
    args.lse[group.lane * args.grid.q_tokens + token] = lse[t];
  }
}

void FinishGroupT(const QueryGroup& group) {
  if (!group.begun)
    std::fill_n(group.memory.o, group.size * OutputStripFloats(group.args.head_dim), 0.0f);
  for (int64_t s = 0; s < group.size; ++s) {
    FinishStrip(group, s);
    if (group.args.masses != nullptr) Masses(group).Finish(s);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace equitile {
namespace {
HWY_EXPORT(FinishGroupT);
}  // namespace

void FinishGroup(const QueryGroup& group) { HWY_DYNAMIC_DISPATCH(FinishGroupT)(group); }

}  // namespace equitile
#endif  // HWY_ONCE

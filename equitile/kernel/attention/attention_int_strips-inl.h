// Strips as integer attention has them in a group's memory: bytes widened to int16 where pairs of
// these are multiplied, queries with what their sums begin at, and queries back as f32. Apart from
// the operand, as what finishes outputs reads queries too.
#if defined(EQUITILE_KERNEL_ATTENTION_INT_STRIPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_ATTENTION_INT_STRIPS_INL_H_
#undef EQUITILE_KERNEL_ATTENTION_INT_STRIPS_INL_H_
#else
#define EQUITILE_KERNEL_ATTENTION_INT_STRIPS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "equitile/kernel/attention/attention_group.h"
#include "equitile/kernel/simd/gemm-inl.h"
#include "equitile/kernel/simd/integer_products-inl.h"
#include "equitile/kernel/target.h"

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

inline const int32_t* AsWords(const std::byte* strip) {
  return reinterpret_cast<const int32_t*>(strip);
}

// Words of four int8 as words of two int16 (WidenQuads). flip: what turns them into int8.
HWY_INLINE void WidenWords(const int32_t* HWY_RESTRICT from, size_t words, uint32_t flip,
                           int32_t* HWY_RESTRICT even, int32_t* HWY_RESTRICT odd) {
  for (size_t i = 0; i < words; i += kVecFloats) {
    const VI bytes = hn::LoadU(DI(), from + i);
    const auto pairs = WidenQuads(DI(), hn::Xor(bytes, hn::Set(DI(), static_cast<int32_t>(flip))));
    hn::StoreU(pairs.even, DI(), even + i);
    hn::StoreU(pairs.odd, DI(), odd + i);
  }
}

// Words of int8 in a strip of queries or keys.
inline size_t ByteWords(int64_t head_dim) {
  return static_cast<size_t>(StripWordBytes(head_dim, Compute::kInt8)) / 4;
}

// A strip of queries, or of keys: of every four dims first 0 and 2, after all of these 1 and 3.
inline void WidenDims(const std::byte* strip, int64_t head_dim, uint32_t flip, std::byte* to) {
  const size_t words = ByteWords(head_dim);
  auto* out = reinterpret_cast<int32_t*>(to);
  WidenWords(AsWords(strip), words, flip, out, out + words);
}
inline void WidenKey(const std::byte* strip, int64_t head_dim, std::byte* to) {
  WidenDims(strip, head_dim, 0x80808080u, to);
}
inline void WidenValue(const std::byte* strip, int64_t head_dim, std::byte* to) {
  auto* out = reinterpret_cast<int32_t*>(to);
  for (size_t row = 0; row < ByteWords(head_dim) / 16; ++row)
    WidenWords(AsWords(strip) + 16 * row, 16, 0, out + 32 * row, out + 32 * row + 16);
}

// A strip of queries of bytes as its group has it: wide, or, where quads of bytes are multiplied,
// as it is with the sums that scores begin at behind it (keys are 128 too large). Scales are last.
inline void PlaceQuery(const std::byte* strip, int64_t head_dim, std::byte* to) {
  const size_t words = ByteWords(head_dim);
  std::copy_n(strip + 4 * words, kStripTokens * 4, to + 8 * words);
  if (ActiveProducts() == IntegerProducts::kPairs) return WidenDims(strip, head_dim, 0, to);
  std::copy_n(strip, 4 * words, to);
  auto* begin = reinterpret_cast<int32_t*>(to) + words;
  for (size_t at = 0; at < 16; at += kVecFloats) {
    VI sum = hn::Zero(DI());
    const VI ones = hn::Set(DI(), 0x10001);
    for (size_t w = at; w < words; w += 16) {
      const auto pairs = WidenQuads(DI(), hn::LoadU(DI(), AsWords(strip) + w));
      sum = PairMath::MulAdd(pairs.even, ones, PairMath::MulAdd(pairs.odd, ones, sum));
    }
    hn::StoreU(hn::Neg(hn::ShiftLeft<7>(sum)), DI(), begin + at);
  }
}

// Where a group's query strip has a dim: its word, and the shifts that leave the number alone.
struct QueryPlace {
  int64_t word;
  int left, right;
};
inline QueryPlace PlaceOfDim(int64_t dim, int64_t padded, Compute compute) {
  if (compute == Compute::kInt16) return {dim / 2, dim % 2 ? 0 : 16, 16};
  if (ActiveProducts() != IntegerProducts::kPairs)
    return {dim / 4, static_cast<int>(24 - dim % 4 * 8), 24};
  return {dim % 2 * (padded / 4) + dim / 4, dim % 4 < 2 ? 16 : 0, 16};  // see WidenDims
}

// The strip'th queries of a group as f32, [head_dim][16]: what they were rounded to.
inline const float* QueryFloats(const QueryGroup& group, int64_t strip) {
  const Compute compute = group.args.compute;
  const int64_t dims = RoundUp(group.args.head_dim, 16), padded = PaddedDim(dims, compute);
  const int64_t bytes = GroupQueryBytes(group.args.head_dim, compute);
  const std::byte* const q = group.memory.q + strip * bytes;
  const auto* scale = reinterpret_cast<const float*>(q + bytes) - kStripTokens;
  for (int64_t dim = 0; dim < dims; ++dim) {
    const QueryPlace place = PlaceOfDim(dim, padded, compute);
    for (size_t at = 0; at < 16; at += kVecFloats) {
      const VI word = hn::Load(DI(), AsWords(q) + place.word * 16 + static_cast<int64_t>(at));
      const VI x = hn::ShiftRightSame(hn::ShiftLeftSame(word, place.left), place.right);
      hn::Store(hn::Mul(hn::ConvertTo(DF(), x), hn::LoadU(DF(), scale + at)), DF(),
                group.memory.q_floats + dim * 16 + static_cast<int64_t>(at));
    }
  }
  return group.memory.q_floats;
}

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_ATTENTION_INT_STRIPS_INL_H_

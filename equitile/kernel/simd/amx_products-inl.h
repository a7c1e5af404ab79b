// Products of bytes in the tile registers of AMX: sums of 16 rows by 16 columns. A multiplication
// takes 16 rows of 64 bytes and a panel of 16 words by 16 columns, 16384 products at once; sums are
// exact in int32, as those of integer_products-inl.h. Targets without AMX do the same slowly, one
// number at a time, for tests.
#if defined(EQUITILE_KERNEL_AMX_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EQUITILE_KERNEL_AMX_PRODUCTS_INL_H_
#undef EQUITILE_KERNEL_AMX_PRODUCTS_INL_H_
#else
#define EQUITILE_KERNEL_AMX_PRODUCTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "equitile/kernel/simd/gemm-inl.h"
#include "hwy/highway.h"

#ifndef EQUITILE_KERNEL_AMX_PRODUCTS_ONCE_
#define EQUITILE_KERNEL_AMX_PRODUCTS_ONCE_
namespace equitile {

inline constexpr size_t kAmxRows = 16;   // of a register
inline constexpr size_t kAmxDepth = 64;  // bytes that one multiplication adds up: 16 words
inline constexpr size_t kAmxPanelBytes = kAmxDepth * 16;
inline constexpr size_t kAmxStrips = 2;   // panels at a time
inline constexpr int kAmxFirstPanel = 6;  // of eight registers: those before hold sums and rows
inline constexpr size_t kAmxStripSums = kAmxRows * 16;
inline constexpr size_t kAmxSums = 2 * kAmxStrips * kAmxStripSums;  // of two groups

// Which bytes of a product have signs. Those without are 0 to 255.
enum class ByteSigns { kBoth, kRows, kPanels };

// What LDTILECFG reads. Made before: it would wait for the stores that make it.
struct AmxConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(AmxConfig) == 64);
struct AmxConfigs {
  constexpr AmxConfigs() {
    for (size_t rows = 1; rows <= kAmxRows; ++rows) {
      for (size_t i = 0; i < kAmxFirstPanel; ++i)
        of_rows[rows - 1].rows[i] = static_cast<uint8_t>(rows);
    }
  }
  AmxConfig of_rows[kAmxRows];
};
alignas(64) inline constexpr AmxConfigs kAmxConfigs;

}  // namespace equitile
#endif  // EQUITILE_KERNEL_AMX_PRODUCTS_ONCE_

HWY_BEFORE_NAMESPACE();
namespace equitile {
namespace HWY_NAMESPACE {

// The eight tile registers of this thread, set up for as long as this lives: registers of sums and
// of rows have `rows` rows, those of panels 16. Afterwards they are empty, and cost no switch of
// threads anything. At most one at a time.
#if HWY_TARGET == HWY_AVX3
class AmxRegisters {
 public:
  explicit AmxRegisters(size_t rows = kAmxRows) {
    asm volatile("ldtilecfg %0" ::"m"(kAmxConfigs.of_rows[rows - 1]));
  }
  ~AmxRegisters() { asm volatile("tilerelease"); }
  AmxRegisters(const AmxRegisters&) = delete;
  AmxRegisters& operator=(const AmxRegisters&) = delete;

  template <int kTile>
  HWY_INLINE void Zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  // stride: bytes from row to row.
  template <int kTile>
  HWY_INLINE void Load(const void* from, size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  HWY_INLINE void Store(int32_t* to) const {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(size_t{64}), "i"(kTile)
                 : "memory");
  }
  template <ByteSigns kSigns, int kSums, int kRows, int kPanel>
  HWY_INLINE void MultiplyAdd() {
    if constexpr (kSigns == ByteSigns::kBoth) {
      asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows), "i"(kPanel));
    } else if constexpr (kSigns == ByteSigns::kRows) {
      asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows), "i"(kPanel));
    } else {
      asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows), "i"(kPanel));
    }
  }
};
#else
class AmxRegisters {
 public:
  explicit AmxRegisters(size_t rows = kAmxRows) : rows_(rows) {}

  template <int kTile>
  void Zero() {
    std::memset(tile_[kTile], 0, sizeof(tile_[kTile]));
  }
  template <int kTile>
  void Load(const void* from, size_t stride) {
    for (size_t row = 0; row < RowsOf(kTile); ++row)
      std::memcpy(tile_[kTile][row], static_cast<const std::byte*>(from) + row * stride, 64);
  }
  template <int kTile>
  void Store(int32_t* to) const {
    std::memcpy(to, tile_[kTile], RowsOf(kTile) * 64);
  }
  template <ByteSigns kSigns, int kSums, int kRows, int kPanel>
  void MultiplyAdd() {
    for (size_t row = 0; row < RowsOf(kSums); ++row) {
      int32_t sums[16];
      std::memcpy(sums, tile_[kSums][row], sizeof(sums));
      for (size_t i = 0; i < kAmxDepth; ++i) {
        const int32_t a = Number(tile_[kRows][row][i], kSigns != ByteSigns::kPanels);
        for (size_t c = 0; c < 16; ++c) {
          const uint8_t b = tile_[kPanel][i / 4][c * 4 + i % 4];
          sums[c] += a * Number(b, kSigns != ByteSigns::kRows);
        }
      }
      std::memcpy(tile_[kSums][row], sums, sizeof(sums));
    }
  }

 private:
  static int32_t Number(uint8_t byte, bool with_sign) {
    return with_sign ? static_cast<int8_t>(byte) : byte;
  }
  size_t RowsOf(int tile) const { return tile < kAmxFirstPanel ? rows_ : kAmxRows; }

  const size_t rows_;
  uint8_t tile_[8][kAmxRows][64];
};
#endif

// Sums of groups of 16 rows with kStrips panels, kBlock groups at a time: while the next block is
// multiplied, the sums of the last become something else, in memory. Blocks of two groups need
// fewer loads; where there is much to do with few products, processors do not look far enough ahead
// to do both at once, and blocks of one are faster (0018-integers.md).
//
// Operands says where things lie: Groups(), Steps(); Rows(group, step), 16 rows of kAmxDepth bytes
// or as many as registers have, RowStride() bytes apart; Panel(strip, step), [16 words][16]; and
// Begin(strip), what each row of sums begins at, [16], null for 0.
template <ByteSigns kSigns, size_t kBlock, size_t kStrips, class Operands>
class AmxSums {
 public:
  static_assert(kBlock >= 1 && kBlock <= 2 && kStrips >= 1 && kStrips <= kAmxStrips);

  AmxSums(const Operands& operands, AmxRegisters& registers, int32_t* memory)
      : operands_(operands),
        registers_(registers),
        memory_(memory),
        keeps_panels_(operands.Steps() == 1) {
    if (keeps_panels_) LoadPanels(0);
    if (operands_.Groups() > 0) Multiply(0);
  }

  // Asked in ascending order, each once: [kStrips][16][16], valid until the next is asked for.
  HWY_INLINE const int32_t* Of(size_t group) {
    int32_t* const second = memory_ + kAmxStrips * kAmxStripSums;
    if (group % kBlock != 0) return second;
    Store<0>(memory_);
    if (kBlock == 2 && group + 1 < operands_.Groups()) Store<2>(second);
    if (group + kBlock < operands_.Groups()) Multiply(group + kBlock);
    return memory_;
  }

 private:
  // Registers: of sums 0 and 1 (first group), 2 and 3, of rows 4 and 5, of panels 6 and 7.
  template <int kFirst>
  HWY_INLINE void Store(int32_t* to) const {
    registers_.Store<kFirst>(to);
    if constexpr (kStrips == 2) registers_.Store<kFirst + 1>(to + kAmxStripSums);
  }
  template <int kFirst>
  HWY_INLINE void Begin() const {
    if (operands_.Begin(0) == nullptr) {
      registers_.Zero<kFirst>();
      if constexpr (kStrips == 2) registers_.Zero<kFirst + 1>();
    } else {
      registers_.Load<kFirst>(operands_.Begin(0), 0);
      if constexpr (kStrips == 2) registers_.Load<kFirst + 1>(operands_.Begin(1), 0);
    }
  }
  HWY_INLINE void LoadPanels(size_t step) const {
    registers_.Load<kAmxFirstPanel>(operands_.Panel(0, step), 64);
    if constexpr (kStrips == 2) registers_.Load<kAmxFirstPanel + 1>(operands_.Panel(1, step), 64);
  }
  template <int kFirst, int kRows>
  HWY_INLINE void MultiplyAdd(size_t group, size_t step) const {
    registers_.Load<kRows>(operands_.Rows(group, step), operands_.RowStride());
    registers_.MultiplyAdd<kSigns, kFirst, kRows, kAmxFirstPanel>();
    if constexpr (kStrips == 2)
      registers_.MultiplyAdd<kSigns, kFirst + 1, kRows, kAmxFirstPanel + 1>();
  }

  // The block from `group` on.
  HWY_INLINE void Multiply(size_t group) const {
    const bool two = kBlock == 2 && group + 1 < operands_.Groups();
    Begin<0>();
    if (two) Begin<2>();
    EQ_NO_UNROLL
    for (size_t step = 0; step < operands_.Steps(); ++step) {
      if (!keeps_panels_) LoadPanels(step);
      MultiplyAdd<0, 4>(group, step);
      if (two) MultiplyAdd<2, 5>(group + 1, step);
    }
  }

  const Operands operands_;
  AmxRegisters& registers_;
  int32_t* const memory_;  // [kAmxSums]
  const bool keeps_panels_;
};

}  // namespace HWY_NAMESPACE
}  // namespace equitile
HWY_AFTER_NAMESPACE();

#endif  // EQUITILE_KERNEL_AMX_PRODUCTS_INL_H_

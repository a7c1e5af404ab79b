#include "equitile/kernel/packed_linear.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>

#include "equitile/base/aligned_buffer.h"
#include "equitile/base/error.h"

namespace equitile {
namespace {

// As it lies in memory. Numbers are in the machine's byte order: another order shows as a wrong
// version.
struct Header {
  char magic[8];
  uint32_t version;
  uint32_t dtype;
  int64_t in;
  int64_t out;
  int64_t bytes;  // header and panels
  std::byte padding[24];
};
static_assert(sizeof(Header) == kBufferAlignment);  // panels start on a cache line

constexpr char kMagic[8] = {'E', 'Q', 'L', 'I', 'N', 'E', 'A', 'R'};
constexpr uint32_t kVersion = 1;
constexpr int64_t kMostElements = std::numeric_limits<int64_t>::max() / 16;

void CheckSizes(int64_t in, int64_t out, DType dtype) {
  if (in < 1 || out < 1 || in > kMostElements / RoundUp(std::min(out, kMostElements), 16)) {
    throw InputError("[kernel] linear layer {} -> {}: both must be at least 1 and fit in memory",
                     in, out);
  }
  if (dtype == DType::kF16) {
    throw InputError("[kernel] packed weights as {}: must be f32 or bf16", DTypeName(dtype));
  }
}

void CheckMemory(const void* data) {
  if (reinterpret_cast<uintptr_t>(data) % kBufferAlignment != 0) {
    throw InputError("[kernel] packed weights at {}: must be {}-byte aligned", fmt::ptr(data),
                     kBufferAlignment);
  }
}

// Matrices on top of each other.
class Stack {
 public:
  explicit Stack(std::span<const ConstView> parts) : parts_(parts) {
    if (parts.empty()) throw InputError("[kernel] weights: no matrix to pack");
    for (const ConstView& part : parts) {
      if (part.Rank() != 2 || part.Extent(1) != parts[0].Extent(1)) {
        throw InputError("[kernel] weights {}: must be [out, in], with one `in` for all",
                         part.shape().ToString());
      }
      if (part.dtype() != parts[0].dtype()) {
        throw InputError("[kernel] weights {}: must have one type, not {} and {}",
                         part.shape().ToString(), DTypeName(parts[0].dtype()),
                         DTypeName(part.dtype()));
      }
      out_ += part.Extent(0);
    }
  }

  int64_t In() const { return parts_[0].Extent(1); }
  int64_t Out() const { return out_; }
  DType dtype() const { return parts_[0].dtype(); }

  struct Row {
    const void* data = nullptr;
    int64_t stride = 0;
    int part = 0;
  };
  Row RowOf(int64_t out) const {
    int part = 0;
    for (; out >= parts_[static_cast<size_t>(part)].Extent(0); ++part) {
      out -= parts_[static_cast<size_t>(part)].Extent(0);
    }
    const ConstView& view = parts_[static_cast<size_t>(part)];
    return {view.Address(out, 0), view.Stride(1), part};
  }

 private:
  std::span<const ConstView> parts_;
  int64_t out_ = 0;
};

// All bits of the exponent set: NaN or infinite.
bool NotFinite(float x) { return (std::bit_cast<uint32_t>(x) & 0x7F800000u) == 0x7F800000u; }

// One panel: [in][16] from 16 rows of the weights, zeros where there are fewer. Returns the first
// matrix with a value that is not finite, or -1.
template <typename From, typename To>
int64_t PackPanel(const Stack& weights, int64_t panel, To* to) {
  const int64_t in = weights.In();
  const int64_t columns = std::min(kPanelColumns, weights.Out() - panel * kPanelColumns);
  Stack::Row rows[kPanelColumns];
  bool bad[kPanelColumns] = {};
  for (int64_t c = 0; c < columns; ++c) rows[c] = weights.RowOf(panel * kPanelColumns + c);
  // In squares of 16 x 16, so that neither reads nor writes jump further than a few cache lines.
  for (int64_t k0 = 0; k0 < in; k0 += kPanelColumns) {
    const int64_t k1 = std::min(in, k0 + kPanelColumns);
    for (int64_t c = 0; c < columns; ++c) {
      const auto* row = static_cast<const From*>(rows[c].data);
      for (int64_t k = k0; k < k1; ++k) {
        const float value = ToFloat(row[k * rows[c].stride]);
        bad[c] |= NotFinite(value);
        to[k * kPanelColumns + c] = FromFloat<To>(value);
      }
    }
    for (int64_t c = columns; c < kPanelColumns; ++c) {
      for (int64_t k = k0; k < k1; ++k) to[k * kPanelColumns + c] = To{};
    }
  }
  const auto* first = std::find(bad, bad + columns, true);
  return first == bad + columns ? -1 : rows[first - bad].part;
}

template <typename To>
int64_t PackPanelOf(const Stack& weights, int64_t panel, std::byte* panels) {
  To* to = reinterpret_cast<To*>(panels) + panel * weights.In() * kPanelColumns;
  switch (weights.dtype()) {
    case DType::kF32:
      return PackPanel<float>(weights, panel, to);
    case DType::kBF16:
      return PackPanel<Bf16>(weights, panel, to);
    case DType::kF16:
      return PackPanel<F16>(weights, panel, to);
  }
  return -1;
}

}  // namespace

int64_t PackedLinearBytes(int64_t in, int64_t out, DType dtype) {
  CheckSizes(in, out, dtype);
  return static_cast<int64_t>(sizeof(Header)) +
         RoundUp(out, kPanelColumns) * in * DTypeBytes(dtype);
}

void PackLinear(const ConstView& weights, DType dtype, std::span<std::byte> to, ThreadPool& pool) {
  PackLinear(std::span(&weights, 1), dtype, to, pool);
}

int64_t PackLinear(std::span<const ConstView> stacked, DType dtype, std::span<std::byte> to,
                   ThreadPool& pool) {
  const Stack weights(stacked);
  const int64_t out = weights.Out(), in = weights.In();
  Header header = {};
  header.bytes = PackedLinearBytes(in, out, dtype);
  if (static_cast<int64_t>(to.size()) < header.bytes) {
    throw InputError("[kernel] packed weights {} -> {}: {} bytes given; {} needed", in, out,
                     to.size(), header.bytes);
  }
  CheckMemory(to.data());
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.dtype = static_cast<uint32_t>(dtype);
  header.in = in;
  header.out = out;
  std::memcpy(to.data(), &header, sizeof(header));

  std::byte* panels = to.data() + sizeof(Header);
  std::atomic<int64_t> bad = std::numeric_limits<int64_t>::max();
  pool.ParallelFor(CeilDiv(out, kPanelColumns), [&](int64_t panel, int) {
    const int64_t part = dtype == DType::kF32 ? PackPanelOf<float>(weights, panel, panels)
                                              : PackPanelOf<Bf16>(weights, panel, panels);
    int64_t seen = bad;
    while (part >= 0 && part < seen && !bad.compare_exchange_weak(seen, part)) continue;
  });
  return bad == std::numeric_limits<int64_t>::max() ? -1 : bad.load();
}

PackedLinear PackedLinear::View(std::span<const std::byte> bytes) {
  Header header;
  if (bytes.size() < sizeof(header)) {
    throw InputError("[kernel] packed weights: {} bytes are less than a header", bytes.size());
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 || header.version != kVersion) {
    throw InputError("[kernel] packed weights: no header of version {} at the start", kVersion);
  }
  if (header.dtype > static_cast<uint32_t>(DType::kF16)) {
    throw InputError("[kernel] packed weights: unknown dtype {}", header.dtype);
  }
  const auto dtype = static_cast<DType>(header.dtype);
  if (header.bytes != PackedLinearBytes(header.in, header.out, dtype)) {
    throw InputError("[kernel] packed weights {} -> {}: the header says {} bytes", header.in,
                     header.out, header.bytes);
  }
  if (static_cast<int64_t>(bytes.size()) < header.bytes) {
    throw InputError("[kernel] packed weights {} -> {}: {} bytes of {} are there", header.in,
                     header.out, bytes.size(), header.bytes);
  }
  CheckMemory(bytes.data());

  PackedLinear packed;
  packed.panels_ = bytes.data() + sizeof(Header);
  packed.in_ = header.in;
  packed.out_ = header.out;
  packed.dtype_ = dtype;
  return packed;
}

}  // namespace equitile

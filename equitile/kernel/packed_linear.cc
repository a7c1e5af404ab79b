#include "equitile/kernel/packed_linear.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "equitile/base/aligned_buffer.h"
#include "equitile/base/error.h"
#include "equitile/kernel/pack_panel.h"

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

  PanelRows Panel(int64_t panel) const {
    PanelRows rows;
    rows.in = In();
    rows.dtype = dtype();
    rows.count = std::min(kPanelColumns, out_ - panel * kPanelColumns);
    for (int64_t c = 0; c < rows.count; ++c) {
      int64_t row = panel * kPanelColumns + c;
      const ConstView& part = parts_[static_cast<size_t>(PartOf(row))];
      rows.rows[c] = {part.Address(row, 0), part.Stride(1)};
    }
    return rows;
  }

  // The part in which `row` lies; `row` becomes its number there.
  int64_t PartOf(int64_t& row) const {
    int64_t part = 0;
    for (; row >= parts_[static_cast<size_t>(part)].Extent(0); ++part) {
      row -= parts_[static_cast<size_t>(part)].Extent(0);
    }
    return part;
  }

  // The first part with a value that is not finite, among those with rows in the panel.
  int64_t NotFinitePart(int64_t panel) const {
    const int64_t end = std::min(out_, (panel + 1) * kPanelColumns);
    for (int64_t column = panel * kPanelColumns; column < end; ++column) {
      int64_t row = column;
      const int64_t part = PartOf(row);
      const ConstView& view = parts_[static_cast<size_t>(part)];
      for (int64_t k = 0; k < In(); ++k) {
        if (!std::isfinite(view.Load(row, k))) return part;
      }
    }
    EQ_CHECK(false, "all values of panel {} are finite", panel);
    return -1;
  }

 private:
  std::span<const ConstView> parts_;
  int64_t out_ = 0;
};

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
    const int64_t panel_bytes = in * kPanelColumns * DTypeBytes(dtype);
    if (PackPanel(weights.Panel(panel), dtype, panels + panel * panel_bytes)) return;
    const int64_t part = weights.NotFinitePart(panel);
    int64_t seen = bad;
    while (part < seen && !bad.compare_exchange_weak(seen, part)) continue;
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

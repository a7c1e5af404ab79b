#include "equitile/kernel/linear/packed_linear.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "equitile/base/aligned_buffer.h"
#include "equitile/base/error.h"
#include "equitile/kernel/linear/pack_panel.h"
#include "equitile/kernel/workspace.h"

namespace equitile {
namespace {

// As it lies in memory. Numbers are in the machine's byte order: another order shows as a wrong
// version.
struct Header {
  char magic[8];
  uint32_t version;
  uint32_t type;
  int64_t in;
  int64_t out;
  int64_t bytes;  // of all: header, panels, what belongs to integers
  std::byte padding[24];
};
static_assert(sizeof(Header) == kBufferAlignment);  // panels start on a cache line

constexpr char kMagic[8] = {'E', 'Q', 'L', 'I', 'N', 'E', 'A', 'R'};
constexpr uint32_t kVersion = 2;
constexpr int64_t kMostElements = std::numeric_limits<int64_t>::max() / 16;

void CheckSizes(int64_t in, int64_t out) {
  if (in < 1 || out < 1 || in > kMostElements / RoundUp(std::min(out, kMostElements), 16)) {
    throw InputError("[kernel] linear layer {} -> {}: both must be at least 1 and fit in memory",
                     in, out);
  }
}

void CheckMemory(const void* data) {
  if (reinterpret_cast<uintptr_t>(data) % kBufferAlignment != 0) {
    throw InputError("[kernel] packed weights at {}: must be {}-byte aligned", fmt::ptr(data),
                     kBufferAlignment);
  }
}

// Where things lie, in bytes from the start.
struct Places {
  Places(int64_t in, int64_t out, WeightType type)
      : parts(type == WeightType::kInt8 ? CeilDiv(in, PartInputs(Compute::kInt8)) : 0) {
    const int64_t count = CeilDiv(out, kPanelColumns);
    scales = panels + count * PackedLinear::PanelBytes(in, type);
    part_sums = scales + (IsInteger(type) ? count * kPanelBytes : 0);
    end = part_sums + count * parts * kPanelBytes;
  }

  // Null where they are not kept.
  int32_t* PartSumsOf(int64_t panel, std::byte* bytes) const {
    if (parts == 0) return nullptr;
    return reinterpret_cast<int32_t*>(bytes + part_sums + panel * parts * kPanelBytes);
  }

  static constexpr int64_t kPanelBytes = kPanelColumns * 4;  // a number per column
  int64_t parts = 0;                                         // whose sums are kept
  int64_t panels = sizeof(Header), scales = 0, part_sums = 0, end = 0;
};

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

int64_t PackedLinearBytes(int64_t in, int64_t out, WeightType type) {
  CheckSizes(in, out);
  return Places(in, out, type).end;
}

void PackLinear(const ConstView& weights, WeightType type, std::span<std::byte> to,
                ThreadPool& pool) {
  PackLinear(std::span(&weights, 1), type, to, pool);
}

int64_t PackLinear(std::span<const ConstView> stacked, WeightType type, std::span<std::byte> to,
                   ThreadPool& pool) {
  const Stack weights(stacked);
  const int64_t out = weights.Out(), in = weights.In();
  Header header = {};
  header.bytes = PackedLinearBytes(in, out, type);
  if (static_cast<int64_t>(to.size()) < header.bytes) {
    throw InputError("[kernel] packed weights {} -> {}: {} bytes given; {} needed", in, out,
                     to.size(), header.bytes);
  }
  CheckMemory(to.data());
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.type = static_cast<uint32_t>(type);
  header.in = in;
  header.out = out;
  std::memcpy(to.data(), &header, sizeof(header));

  const Places places(in, out, type);
  Workspace workspace;  // panels in f32, before they are rounded
  if (IsInteger(type)) workspace.ReservePerThread<float>(pool.Threads(), in * kPanelColumns);
  const auto pack = [&](int64_t panel, int thread) {
    const PanelRows rows = weights.Panel(panel);
    std::byte* panel_to = to.data() + places.panels + panel * PackedLinear::PanelBytes(in, type);
    if (type == WeightType::kF32) return PackPanel(rows, DType::kF32, panel_to);
    if (type == WeightType::kBF16) return PackPanel(rows, DType::kBF16, panel_to);
    return PackIntegerPanel(
        rows, ComputeOf(type), workspace.ForThread<float>(thread),
        {.words = reinterpret_cast<int32_t*>(panel_to),
         .scales = reinterpret_cast<float*>(to.data() + places.scales) + panel * kPanelColumns,
         .part_sums = places.PartSumsOf(panel, to.data())});
  };
  std::atomic<int64_t> bad = std::numeric_limits<int64_t>::max();
  pool.ParallelFor(CeilDiv(out, kPanelColumns), [&](int64_t panel, int thread) {
    if (pack(panel, thread)) return;
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
  if (header.type > static_cast<uint32_t>(WeightType::kInt8)) {
    throw InputError("[kernel] packed weights: unknown type {}", header.type);
  }
  const auto type = static_cast<WeightType>(header.type);
  if (header.bytes != PackedLinearBytes(header.in, header.out, type)) {
    throw InputError("[kernel] packed weights {} -> {}: the header says {} bytes", header.in,
                     header.out, header.bytes);
  }
  if (static_cast<int64_t>(bytes.size()) < header.bytes) {
    throw InputError("[kernel] packed weights {} -> {}: {} bytes of {} are there", header.in,
                     header.out, bytes.size(), header.bytes);
  }
  CheckMemory(bytes.data());

  const Places places(header.in, header.out, type);
  PackedLinear packed;
  packed.panels_ = bytes.data() + places.panels;
  packed.scales_ = reinterpret_cast<const float*>(bytes.data() + places.scales);
  packed.part_sums_ = reinterpret_cast<const int32_t*>(bytes.data() + places.part_sums);
  packed.in_ = header.in;
  packed.out_ = header.out;
  packed.type_ = type;
  return packed;
}

}  // namespace equitile

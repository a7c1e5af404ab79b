#include "equitile/base/aligned_buffer.h"

#include <cstdlib>
#include <cstring>
#include <limits>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "equitile/base/error.h"

namespace equitile::internal {

void* AllocateAligned(int64_t count, size_t object_bytes, bool zeroed) {
  EQ_CHECK(count >= 0, "{} objects", count);
  if (count == 0) return nullptr;
  // Half of the address space, so that rounding up cannot overflow.
  constexpr size_t kMostBytes = std::numeric_limits<size_t>::max() / 2;
  if (static_cast<size_t>(count) > kMostBytes / object_bytes) {
    throw Error("[base] cannot allocate {} objects of {} bytes: more than the address space", count,
                object_bytes);
  }
  const size_t bytes = static_cast<size_t>(count) * object_bytes;
  const bool huge = bytes >= kHugePageThresholdBytes;
  const size_t alignment = huge ? kHugePageBytes : kBufferAlignment;
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(alignment, rounded);
  if (data == nullptr) throw Error("[base] cannot allocate {} bytes: out of memory", bytes);
#if defined(MADV_HUGEPAGE)
  // A wish: without it the pages are just smaller. Not for the end, of which little may be used.
  if (huge) madvise(data, bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
#endif
  if (zeroed) std::memset(data, 0, bytes);
  return data;
}

void FreeAligned(void* data) { std::free(data); }

}  // namespace equitile::internal

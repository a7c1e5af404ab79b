#include "equitile/base/growing_buffer.h"

#include <limits>

#include "equitile/base/error.h"

namespace equitile {

void GrowingBuffer::Grow(int64_t count, size_t object_bytes) {
  const auto size = static_cast<int64_t>(object_bytes);
  if (count > std::numeric_limits<int64_t>::max() / size) {
    throw Error("[base] cannot allocate {} objects of {} bytes: more than the address space", count,
                object_bytes);
  }
  buffer_ = {};  // before, not after: never both at a time
  buffer_ = AlignedBuffer<std::byte>(count * size);
}

}  // namespace equitile

#include "equitile/base/error.h"

#include <cstdio>
#include <cstdlib>

namespace equitile::internal {

void CheckFailed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "equitile: internal check failed at %s:%d: %s%s%s\n", file, line, condition,
               message.empty() ? "" : ": ", message.c_str());
  std::abort();
}

}  // namespace equitile::internal

#include "apps/cli/pattern_text.h"

#include <fmt/format.h>

#include "apps/cli/table.h"

namespace equitile {

std::string SizeText(const HeadPattern& head) {
  if (head.mode == HeadMode::kDiagonal) return fmt::format("{:.4g} frames", head.size);
  if (head.mode == HeadMode::kMultiDiagonal) return fmt::format("{:.4g} places", head.size);
  if (head.mode != HeadMode::kStripes) return "";
  int64_t tokens = 0;
  for (const Range& column : head.columns) tokens += column.size();
  return fmt::format("{} tokens in {}", tokens, Counted(std::ssize(head.columns), "stripe"));
}

}  // namespace equitile

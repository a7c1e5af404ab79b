#include "equitile/comm/comm_error.h"

#include <utility>

namespace equitile {
namespace {

void Append(std::string& text, const char* name, int32_t value) {
  if (value < 0) return;
  text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
}

std::string Describe(const RankFailure& failure) {
  const std::string place = ToString(failure.place);
  return fmt::format("rank {}{}: {}", failure.rank, place.empty() ? "" : " (" + place + ")",
                     failure.cause);
}

}  // namespace

std::string ToString(const Place& place) {
  std::string text;
  Append(text, "step", place.step);
  Append(text, "layer", place.layer);
  Append(text, "stage", place.stage);
  return text;
}

CommError::CommError(RankFailure failure)
    : Error(Describe(failure)), failure_(std::move(failure)) {}

}  // namespace equitile

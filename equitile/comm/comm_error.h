// The failure of a rank, as every rank sees it: who, where, why. A type of its own, so that a rank
// can tell its own failure from news of another's.
#pragma once

#include <cstdint>
#include <string>

#include "equitile/base/error.h"

namespace equitile {

// Where a rank is in its work; -1: not known.
struct Place {
  int32_t step = -1;
  int32_t layer = -1;
  int32_t stage = -1;

  friend bool operator==(const Place&, const Place&) = default;
};

// "step 3, layer 1, stage 0", without what is not known.
std::string ToString(const Place& place);

// kUnusable: the user's input was the cause (exit code 2). kLost: the rank gave no sign of life.
enum class FailureKind : uint8_t { kFailed, kUnusable, kLost };

struct RankFailure {
  int32_t rank = -1;
  Place place;
  FailureKind kind = FailureKind::kFailed;
  std::string cause;
};

// what(): "rank 2 (step 3, layer 1, stage 0): the cause".
class CommError : public Error {
 public:
  explicit CommError(RankFailure failure);

  int32_t rank() const { return failure_.rank; }
  const Place& place() const { return failure_.place; }
  const std::string& cause() const { return failure_.cause; }
  const RankFailure& failure() const { return failure_; }

 private:
  RankFailure failure_;
};

}  // namespace equitile

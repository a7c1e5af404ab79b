#include "equitile/exec/agreement.h"

#include <array>
#include <span>

#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr std::array<const char*, 3> kThings = {"mask", "plan", "head_dim"};

// The lowest rank whose number is not rank 0's.
int32_t FirstOther(Communicator& comm, uint64_t own) {
  uint64_t first = own;
  comm.Broadcast(std::as_writable_bytes(std::span(&first, 1)), 0);
  uint64_t other = static_cast<uint64_t>(own == first ? comm.size() : comm.rank());
  comm.AllReduce(std::span(&other, 1), Reduce::kMin);
  return static_cast<int32_t>(other);
}

}  // namespace

void CheckAgreement(Communicator& comm, const RunIdentity& identity) {
  if (comm.size() == 1) return;
  const std::array<uint64_t, kThings.size()> own = {identity.mask, identity.plan,
                                                    static_cast<uint64_t>(identity.head_dim)};
  // Smallest and largest in one reduction: the smallest of the complements is the largest.
  std::array<uint64_t, 2 * kThings.size()> extremes;
  for (size_t i = 0; i < own.size(); ++i) {
    extremes[2 * i] = own[i];
    extremes[2 * i + 1] = ~own[i];
  }
  comm.AllReduce(std::span<uint64_t>(extremes), Reduce::kMin);
  for (size_t i = 0; i < own.size(); ++i) {
    if (extremes[2 * i] == ~extremes[2 * i + 1]) continue;
    throw InputError("[exec] rank {} has another {} than rank 0; all ranks need the same",
                     FirstOther(comm, own[i]), kThings[i]);
  }
}

}  // namespace equitile

#include "equitile/exec/agreement.h"

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"

namespace equitile {
namespace {

// The lowest rank whose number is not rank 0's.
int32_t FirstOther(Communicator& comm, uint64_t own) {
  uint64_t first = own;
  comm.Broadcast(std::as_writable_bytes(std::span(&first, 1)), 0);
  uint64_t other = static_cast<uint64_t>(own == first ? comm.size() : comm.rank());
  comm.AllReduce(std::span(&other, 1), Reduce::kMin);
  return static_cast<int32_t>(other);
}

// For as many names and values on every rank.
void CheckEach(Communicator& comm, std::span<const std::string> names,
               std::span<const uint64_t> own) {
  // Smallest and largest in one reduction: the smallest of the complements is the largest.
  std::vector<uint64_t> extremes(2 * own.size());
  for (size_t i = 0; i < own.size(); ++i) {
    extremes[2 * i] = own[i];
    extremes[2 * i + 1] = ~own[i];
  }
  comm.AllReduce(std::span<uint64_t>(extremes), Reduce::kMin);
  for (size_t i = 0; i < own.size(); ++i) {
    if (extremes[2 * i] == ~extremes[2 * i + 1]) continue;
    throw InputError("[exec] rank {} has another {} than rank 0; all ranks need the same",
                     FirstOther(comm, own[i]), names[i]);
  }
}

}  // namespace

void CheckAgreement(Communicator& comm, const RunIdentity& identity) {
  static const std::array<std::string, 4> kNames = {"mask", "plan", "head_dim", "arithmetic"};
  if (comm.size() == 1) return;
  CheckEach(comm, kNames,
            std::array<uint64_t, 4>{identity.mask, identity.plan,
                                    static_cast<uint64_t>(identity.head_dim),
                                    static_cast<uint64_t>(identity.compute)});
}

void CheckSame(Communicator& comm, const std::map<std::string, uint64_t>& things) {
  if (comm.size() == 1) return;
  std::vector<std::string> names;
  std::vector<uint64_t> values;
  Hasher hasher;
  for (const auto& [name, value] : things) {
    names.push_back(name);
    values.push_back(value);
    hasher.Add(std::string_view(name));
  }
  const std::string all = "set of parameters";
  CheckEach(comm, std::span(&all, 1), std::array<uint64_t, 1>{hasher.Digest()});
  CheckEach(comm, names, values);
}

}  // namespace equitile

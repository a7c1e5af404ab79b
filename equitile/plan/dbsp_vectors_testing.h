// The stored plans of the db-SP reference (tests/data/vectors), for the tests and benches of this
// room.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/io/mask_file.h"
#include "equitile/plan/dbsp.h"

namespace equitile::testing {

struct StoredPlan {
  std::string mask, variant;
  int64_t ulysses = 0, ring = 0, total = 0;
  int64_t crit_before = 0, crit_after = 0, crit_paper_before = 0, crit_paper_after = 0;
  int64_t moved_q = 0, moved_kv = 0;
  double reference_seconds = 0;
  std::vector<int32_t> head_perm, q_owner, kv_owner;

  DbspOptions Options() const {
    DbspOptions options;
    if (variant == "v4r0") options.reward = 0;
    if (variant == "v5") options.blocks = DbspBlocks::kSwap;
    if (variant == "v4r2c") options.head_order = DbspHeadOrder::kWeight;
    return options;
  }
};

inline BlockMask ReadVectorMask(const std::string& name) {
  return ReadMaskFile(EQUITILE_TEST_DATA "/vectors/" + name + ".mask.npy").layers.front();
}

// [plans][heads + 2 blocks] int16, format 1.0: not a type that io knows, and only used here.
inline std::vector<int16_t> ReadStoredOwners(const std::string& name) {
  std::ifstream file(EQUITILE_TEST_DATA "/vectors/" + name + ".plans.npy", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EQ_CHECK(text.size() > 10);
  const size_t begin = 10 + static_cast<unsigned char>(text[8]) +
                       256 * static_cast<size_t>(static_cast<unsigned char>(text[9]));
  std::vector<int16_t> owners((text.size() - begin) / sizeof(int16_t));
  std::memcpy(owners.data(), text.data() + begin, owners.size() * sizeof(int16_t));
  return owners;
}

inline std::vector<StoredPlan> ReadStoredPlans() {
  std::ifstream file(EQUITILE_TEST_DATA "/vectors/plans.tsv");
  std::string line;
  std::getline(file, line);
  std::vector<StoredPlan> plans;
  std::map<std::string, int64_t> plans_of_mask;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    StoredPlan plan;
    double rho_before = 0, rho_after = 0;
    fields >> plan.mask >> plan.ulysses >> plan.ring >> plan.variant >> plan.total >>
        plan.crit_before >> plan.crit_after >> plan.crit_paper_before >> plan.crit_paper_after >>
        rho_before >> rho_after >> plan.moved_q >> plan.moved_kv >> plan.reference_seconds;
    ++plans_of_mask[plan.mask];
    plans.push_back(std::move(plan));
  }
  std::map<std::string, std::vector<int16_t>> owners;
  std::map<std::string, int64_t> next;
  for (StoredPlan& plan : plans) {
    auto [it, added] = owners.try_emplace(plan.mask);
    if (added) it->second = ReadStoredOwners(plan.mask);
    const int64_t width = static_cast<int64_t>(it->second.size()) / plans_of_mask[plan.mask];
    const int64_t heads = std::stoll(plan.mask.substr(plan.mask.find("_h") + 2));
    const int64_t blocks = (width - heads) / 2;
    const auto row = it->second.begin() + width * next[plan.mask]++;
    plan.head_perm.assign(row, row + heads);
    plan.q_owner.assign(row + heads, row + heads + blocks);
    plan.kv_owner.assign(row + heads + blocks, row + width);
  }
  return plans;
}

// All masks that have stored plans, in the order of plans.tsv.
inline std::vector<std::string> VectorMaskNames() {
  std::vector<std::string> names;
  for (const StoredPlan& plan : ReadStoredPlans()) {
    if (names.empty() || names.back() != plan.mask) names.push_back(plan.mask);
  }
  return names;
}

}  // namespace equitile::testing

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
#include "equitile/pattern/block_mask.h"
#include "equitile/plan/planners/dbsp/dbsp.h"
#include "tests/in_repository.h"

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

// The elements of an npy file of format 1.0. The room has no arrow to io; sizes follow from the
// names of the vectors.
template <typename Element>
std::vector<Element> ReadElements(const std::string& name) {
  std::ifstream file(InRepository("tests/data/vectors/") + name, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EQ_CHECK(text.size() > 10, "{}", name);
  const size_t begin = 10 + static_cast<unsigned char>(text[8]) +
                       256 * static_cast<size_t>(static_cast<unsigned char>(text[9]));
  std::vector<Element> elements((text.size() - begin) / sizeof(Element));
  std::memcpy(elements.data(), text.data() + begin, elements.size() * sizeof(Element));
  return elements;
}

// What follows "_h" or "_b" in the name of a mask: heads, blocks.
inline int64_t SizeInName(const std::string& mask, const std::string& mark) {
  return std::stoll(mask.substr(mask.find(mark) + mark.size()));
}

inline BlockMask ReadVectorMask(const std::string& name) {
  const int64_t heads = SizeInName(name, "_h"), blocks = SizeInName(name, "_b");
  const std::vector<uint8_t> elements = ReadElements<uint8_t>(name + ".mask.npy");
  EQ_CHECK(static_cast<int64_t>(elements.size()) == heads * blocks * blocks, "{}", name);
  BlockMask mask({1, heads}, {blocks * 64, blocks * 64, 64});
  for (int64_t k = 0; k < heads * blocks * blocks; ++k) {
    if (elements[static_cast<size_t>(k)] != 0) {
      mask.Set(k / (blocks * blocks), k / blocks % blocks, k % blocks);
    }
  }
  return mask;
}

inline std::vector<StoredPlan> ReadStoredPlans() {
  std::ifstream file(InRepository("tests/data/vectors/plans.tsv"));
  std::string line;
  std::getline(file, line);
  std::vector<StoredPlan> plans;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    StoredPlan plan;
    double rho_before = 0, rho_after = 0;
    fields >> plan.mask >> plan.ulysses >> plan.ring >> plan.variant >> plan.total >>
        plan.crit_before >> plan.crit_after >> plan.crit_paper_before >> plan.crit_paper_after >>
        rho_before >> rho_after >> plan.moved_q >> plan.moved_kv >> plan.reference_seconds;
    plans.push_back(std::move(plan));
  }
  std::map<std::string, std::vector<int16_t>> owners;
  std::map<std::string, int64_t> next;
  for (StoredPlan& plan : plans) {
    auto [it, added] = owners.try_emplace(plan.mask);
    if (added) it->second = ReadElements<int16_t>(plan.mask + ".plans.npy");
    const int64_t heads = SizeInName(plan.mask, "_h"), blocks = SizeInName(plan.mask, "_b");
    const auto row = it->second.begin() + (heads + 2 * blocks) * next[plan.mask]++;
    plan.head_perm.assign(row, row + heads);
    plan.q_owner.assign(row + heads, row + heads + blocks);
    plan.kv_owner.assign(row + heads + blocks, row + heads + 2 * blocks);
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

// The stored plans of the db-SP reference (tests/data/vectors), for the tests and benches of this
// room; the library never includes this.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/pattern/block_mask.h"
#include "equitile/plan/dbsp.h"

namespace equitile {

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

namespace vectors_internal {

struct SmallNpy {
  std::vector<int64_t> shape;
  std::string bytes;
};

// Version 1.0, C order: what the vectors are.
inline SmallNpy ReadNpy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (text.size() < 10)
    throw InputError("[plan] {}: cannot be read; it should be an npy file", path);
  const size_t header =
      static_cast<unsigned char>(text[8]) + 256 * static_cast<unsigned char>(text[9]);
  SmallNpy npy;
  npy.bytes = text.substr(10 + header);
  const std::string head = text.substr(10, header);
  const std::string shape = head.substr(head.find("'shape'"));
  const std::regex digits("[0-9]+");
  const std::string inside = shape.substr(0, shape.find(')'));
  for (std::sregex_iterator it(inside.begin(), inside.end(), digits), end; it != end; ++it) {
    npy.shape.push_back(std::stoll(it->str()));
  }
  return npy;
}

}  // namespace vectors_internal

inline BlockMask ReadVectorMask(const std::string& data, const std::string& name) {
  const auto npy = vectors_internal::ReadNpy(data + "/vectors/" + name + ".mask.npy");
  const int64_t heads = npy.shape.at(0), q_blocks = npy.shape.at(1), kv_blocks = npy.shape.at(2);
  BlockMask mask({1, heads}, {q_blocks * 64, kv_blocks * 64, 64});
  size_t at = 0;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < q_blocks; ++i) {
      for (int64_t j = 0; j < kv_blocks; ++j) {
        if (npy.bytes[at++]) mask.Set(h, i, j);
      }
    }
  }
  return mask;
}

inline std::vector<StoredPlan> ReadStoredPlans(const std::string& data) {
  std::ifstream file(data + "/vectors/plans.tsv");
  std::string line;
  std::getline(file, line);
  std::vector<StoredPlan> plans;
  std::map<std::string, vectors_internal::SmallNpy> owners;
  std::map<std::string, size_t> next;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    StoredPlan plan;
    double rho_before = 0, rho_after = 0;
    fields >> plan.mask >> plan.ulysses >> plan.ring >> plan.variant >> plan.total >>
        plan.crit_before >> plan.crit_after >> plan.crit_paper_before >> plan.crit_paper_after >>
        rho_before >> rho_after >> plan.moved_q >> plan.moved_kv >> plan.reference_seconds;
    auto& npy = owners[plan.mask];
    if (npy.shape.empty())
      npy = vectors_internal::ReadNpy(data + "/vectors/" + plan.mask + ".plans.npy");
    const auto width = static_cast<size_t>(npy.shape.at(1));
    std::vector<int16_t> row(width);
    std::memcpy(row.data(), npy.bytes.data() + next[plan.mask]++ * width * sizeof(int16_t),
                width * sizeof(int16_t));
    const int64_t heads = std::stoll(plan.mask.substr(plan.mask.find("_h") + 2));
    const auto blocks = (static_cast<int64_t>(width) - heads) / 2;
    plan.head_perm.assign(row.begin(), row.begin() + heads);
    plan.q_owner.assign(row.begin() + heads, row.begin() + heads + blocks);
    plan.kv_owner.assign(row.begin() + heads + blocks, row.end());
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace equitile

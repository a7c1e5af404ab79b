#include "equitile/sparsity/published/sparge_rule.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/sparsity/source/not_finite.h"

namespace equitile {
namespace {

double Dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

}  // namespace

void KeepBySparge(const SpargeBlocks& blocks, const SpargeOptions& options, int64_t lane,
                  BlockMask& mask) {
  const auto dim = static_cast<size_t>(blocks.head_dim);
  const int64_t kv_blocks = mask.KvBlocks();
  EQ_CHECK(std::ssize(blocks.q_similarity) == mask.QBlocks() &&
           std::ssize(blocks.k_similarity) == kv_blocks);
  EQ_CHECK(blocks.q_means.size() == blocks.q_similarity.size() * dim &&
           blocks.k_means.size() == blocks.k_similarity.size() * dim);
  const auto unlike = [&](float similarity) { return !(similarity > options.least_similarity); };
  const int64_t wanted = std::clamp<int64_t>(
      static_cast<int64_t>(options.top_k * static_cast<double>(kv_blocks)), 1, kv_blocks);
  std::vector<std::pair<double, int64_t>> order;  // (-score, block): the best first, then the lower
  for (int64_t q = 0; q < mask.QBlocks(); ++q) {
    const auto row = static_cast<size_t>(q);
    if (unlike(blocks.q_similarity[row])) {
      mask.SetRange(lane, q, {0, kv_blocks});
      continue;
    }
    order.clear();
    for (int64_t kv = 0; kv < kv_blocks; ++kv) {
      const auto column = static_cast<size_t>(kv);
      const double score =
          Dot(blocks.q_means.subspan(row * dim, dim), blocks.k_means.subspan(column * dim, dim));
      if (!std::isfinite(score)) throw NotFinite();
      if (unlike(blocks.k_similarity[column])) {
        mask.Set(lane, q, kv);
        order.emplace_back(INFINITY, kv);
      } else {
        order.emplace_back(-score, kv);
      }
    }
    std::nth_element(order.begin(), order.begin() + (wanted - 1), order.end());
    for (int64_t i = 0; i < wanted; ++i) mask.Set(lane, q, order[static_cast<size_t>(i)].second);
  }
}

}  // namespace equitile

// Rows of queries, keys or values of one lane, brought from their homes to the rank that makes the
// lane's masks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/kernel/row_producer.h"
#include "equitile/plan/core/home_map.h"
#include "equitile/sparsity/source_context.h"

namespace equitile {

class LaneRows {
 public:
  explicit LaneRows(const SourceContext& context);

  // Collective. [tokens][head_dim] on the rank that makes the lane's mask (MaskMakerOf), empty
  // elsewhere. tokens: ascending, numbered as at home.
  std::vector<float> Gather(const RowProducer& rows, int64_t lane,
                            std::span<const int64_t> tokens) const;
  // The same for all tokens.
  std::vector<float> GatherAll(const RowProducer& rows, int64_t lane) const {
    return Gather(rows, lane, all_);
  }

 private:
  std::span<const int64_t> AtHome(int32_t rank, int64_t lane,
                                  std::span<const int64_t> tokens) const;
  void Read(const RowProducer& rows, int64_t lane, std::span<const int64_t> tokens,
            float* to) const;

  SourceContext context_;
  HomeMap homes_;
  std::vector<int64_t> all_;  // tokens
};

}  // namespace equitile

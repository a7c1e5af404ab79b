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

  // Collective. to: [tokens][head_dim] on the rank that makes the lane's mask (MaskMakerOf), empty
  // elsewhere; its memory is used again, and stays in place until Finish, before which others' rows
  // are not in it. tokens: ascending, numbered as at home. Nobody waits here: a rank that makes one
  // lane's mask sends rows of all others.
  void Gather(const RowProducer& rows, int64_t lane, std::span<const int64_t> tokens,
              std::vector<float>& to);
  // The same for all tokens.
  void GatherAll(const RowProducer& rows, int64_t lane, std::vector<float>& to) {
    Gather(rows, lane, all_, to);
  }
  // Collective. All that was asked for since the last time is there, and has left.
  void Finish();

  int64_t Bytes() const;

 private:
  std::span<const int64_t> AtHome(int32_t rank, int64_t lane,
                                  std::span<const int64_t> tokens) const;
  void Read(const RowProducer& rows, int64_t lane, std::span<const int64_t> tokens,
            float* to) const;

  SourceContext context_;
  HomeMap homes_;
  std::vector<int64_t> all_;  // tokens
  std::vector<std::vector<float>> sent_;  // by message; the first sending_ of them are under way
  size_t sending_ = 0;
  std::vector<CommRequest> under_way_;
};

}  // namespace equitile

// Rows of queries, keys or values of some lanes, brought from their homes to the ranks that make
// these lanes' masks; a few lanes at a time, while masks are made of those that are there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/base/function_ref.h"
#include "equitile/kernel/rows/row_producer.h"
#include "equitile/plan/core/home_map.h"
#include "equitile/sparsity/source/mask_makers.h"
#include "equitile/sparsity/source/source_context.h"

namespace equitile {

class LaneRows {
 public:
  // at_once: lanes that a rank makes masks of together.
  LaneRows(const SourceContext& context, int64_t at_once);

  // Some lanes of every rank. What is brought for them goes into memory of the caller's that is
  // `slot`'s, one of Slots(), until the turn is over.
  struct Turn {
    std::span<const LaneMaker> lanes;
    size_t slot = 0;
  };
  size_t Slots() const { return batches_.size(); }
  bool IsOwn(const LaneMaker& lane) const { return lane.maker == context_.comm->rank(); }

  // Collective. gather: calls Gather for the turn's lanes. use: what was gathered is there; nothing
  // is sent or received. Some turns are gathered before the first is used, so that their rows
  // travel meanwhile.
  void InTurns(std::span<const int64_t> lanes, FunctionRef<void(const Turn&)> gather,
               FunctionRef<void(const Turn&)> use);

  // Collective, inside of `gather` alone. to: [tokens][head_dim] on the lane's maker, empty
  // elsewhere; stays in place until the turn is over. tokens: ascending, numbered as at home.
  // Nobody waits here.
  void Gather(const RowProducer& rows, const LaneMaker& lane, std::span<const int64_t> tokens,
              std::vector<float>& to);
  // The same for all tokens.
  void GatherAll(const RowProducer& rows, const LaneMaker& lane, std::vector<float>& to) {
    Gather(rows, lane, all_, to);
  }

  int64_t Bytes() const;

 private:
  // What was posted for a turn.
  struct Batch {
    std::vector<std::vector<float>> sent;  // by message
    std::vector<CommRequest> leaving, arriving;
  };
  std::span<const int64_t> AtHome(int32_t rank, int64_t lane,
                                  std::span<const int64_t> tokens) const;
  void Read(const RowProducer& rows, int64_t lane, std::span<const int64_t> tokens,
            float* to) const;
  void Finish(std::vector<CommRequest>& requests);

  SourceContext context_;
  HomeMap homes_;
  int64_t at_once_;
  std::vector<int64_t> all_;    // tokens
  std::vector<Batch> batches_;  // [slots]
  Batch* batch_ = nullptr;      // that is gathered
};

}  // namespace equitile

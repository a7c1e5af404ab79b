// How much attention every block of keys gets, over all queries: the first pass of a search, in
// which stripes are found. The masses are those that `observe` by mass sees.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/search/trials/attention_maps.h"
#include "equitile/sparsity/source/mask_source.h"
#include "equitile/sparsity/source/source_context.h"

namespace equitile {

// [layers][heads][kv blocks]
using ColumnTable = std::vector<std::vector<std::vector<uint64_t>>>;
ColumnTable MakeColumnTable(int64_t layers, int64_t heads, int64_t kv_blocks);
// For checkpoints. Take: into a table of the right size; throws InputError for another one's.
void PutColumns(const ColumnTable& columns, SourceState& parts);
void TakeColumns(const SourceState& parts, ColumnTable& columns);

// Dense, and adds what it sees from step `from` on, of all passes, to a table and to maps: the same
// on every rank.
class ColumnMassSource final : public MaskSource {
 public:
  // sums and maps must outlive it.
  ColumnMassSource(const SourceContext& context, int64_t from, ColumnTable& sums,
                   AttentionMaps& maps)
      : context_(context),
        from_(from),
        dense_(BlockMask::Dense(context.lanes, context.grid)),
        sums_(sums),
        maps_(maps) {}

  LaneMasks MaskFor(const SelfAttentionCall&) override { return dense_; }
  bool Observes(const SelfAttentionCall& call) const override { return call.step >= from_; }
  void Observe(const SelfAttentionCall& call, const LaneMasks& masks,
               std::span<const RowMasses> rows) override;

 private:
  SourceContext context_;
  int64_t from_;
  LaneMasks dense_;
  ColumnTable& sums_;
  AttentionMaps& maps_;
};

}  // namespace equitile

#include "equitile/kernel/attention/attention_check.h"

#include <algorithm>
#include <cmath>

#include "equitile/base/error.h"

namespace equitile {
namespace {

void CheckView(const char* name, const Shape& shape, const AttentionArgs& args, int64_t tokens) {
  const Shape want = {args.lanes.batch, tokens, args.lanes.heads, args.head_dim};
  if (shape == want) return;
  throw InputError("[attention] {} has shape {}; batch, tokens, heads, head_dim ask for {}", name,
                   shape.ToString(), want.ToString());
}

void CheckSource(const char* name, const TokenSource& source, const AttentionArgs& args,
                 int64_t tokens) {
  if (source.IsProducer()) return;
  if (source.IsStrips()) {
    if (source.strips.compute != args.compute) {
      throw InputError("[attention] {} is strips of {}; the call computes in {}", name,
                       ComputeName(source.strips.compute), ComputeName(args.compute));
    }
    const int64_t per_lane = CeilDiv(tokens, kStripTokens);
    if (source.strips.strips_per_lane != per_lane ||
        static_cast<int64_t>(source.strips.strips.size()) != per_lane * args.lanes.Count()) {
      throw InputError(
          "[attention] {} has {} strips, {} per lane; {} lanes of {} tokens ask for {} each", name,
          source.strips.strips.size(), source.strips.strips_per_lane, args.lanes.Count(), tokens,
          per_lane);
    }
    return;
  }
  CheckView(name, source.view.shape(), args, tokens);
}

void CheckRows(const AttentionArgs& args) {
  const AttentionRows& rows = *args.rows;
  const int64_t q_blocks = args.grid.QBlocks(), kv_blocks = args.grid.KvBlocks();
  EQ_CHECK(rows.first.size() == rows.rows.size() + 1, "{} rows, {} offsets", rows.rows.size(),
           rows.first.size());
  for (int64_t i = 0; i < rows.Count(); ++i) {
    const auto row = rows.rows[static_cast<size_t>(i)];
    if (row.lane < 0 || row.lane >= args.lanes.Count() || row.q_block < 0 ||
        row.q_block >= q_blocks) {
      throw InputError("[attention] row {}: lane {}, q block {}; there are {} lanes of {} blocks",
                       i, row.lane, row.q_block, args.lanes.Count(), q_blocks);
    }
    int64_t previous = -1;
    for (int32_t block : rows.KvBlocks(i)) {
      if (block <= previous || block >= kv_blocks) {
        throw InputError(
            "[attention] row {}: kv block {} after {}; blocks must ascend and be below {}", i,
            block, previous, kv_blocks);
      }
      previous = block;
    }
  }
}

void CheckTails(const AttentionArgs& args) {
  const AttentionTails& tails = args.tails;
  if (std::ranges::count(tails.lanes, Tail::kMean) == 0) return;
  const auto lanes = static_cast<size_t>(args.lanes.Count());
  if (tails.lanes.size() != lanes || (!tails.means.empty() && tails.means.size() != lanes)) {
    throw InputError("[attention] {} tails and {} means for {} lanes", tails.lanes.size(),
                     tails.means.size(), lanes);
  }
  if (tails.means.empty() && (args.k.IsStrips() || args.v.IsStrips())) {
    throw InputError("[attention] tails of strips: K and V may lack blocks; give their means");
  }
  if (tails.kept != nullptr &&
      (tails.kept->lanes() != args.lanes || tails.kept->grid() != args.grid)) {
    throw InputError("[attention] tails of parts: the mask of whole rows has another grid");
  }
  if (args.bias.data != nullptr) throw InputError("[attention] bias and tails: one or the other");
}

}  // namespace

void CheckAttention(const AttentionArgs& args) {
  CheckBlockGrid(args.grid);
  if (args.head_dim <= 0 || args.head_dim > kMaxHeadDim || args.head_dim % kHeadDimStep != 0) {
    throw InputError("[attention] head_dim {}: must be a multiple of {} up to {}", args.head_dim,
                     kHeadDimStep, kMaxHeadDim);
  }
  if (!(args.scale >= 0.0f) || !std::isfinite(args.scale)) {
    throw InputError("[attention] scale {}: must be finite and not negative", args.scale);
  }
  EQ_CHECK(args.rows != nullptr, "no rows");
  CheckSource("q", args.q, args, args.grid.q_tokens);
  CheckSource("k", args.k, args, args.grid.kv_tokens);
  CheckSource("v", args.v, args, args.grid.kv_tokens);
  if (args.out_strips.Used()) {
    const int64_t per_lane = CeilDiv(args.grid.q_tokens, kStripTokens);
    EQ_CHECK(args.out_strips.strips_per_lane == per_lane &&
                 std::ssize(args.out_strips.strips) == per_lane * args.lanes.Count(),
             "{} output strips, {} per lane", args.out_strips.strips.size(),
             args.out_strips.strips_per_lane);
  } else {
    CheckView("out", args.out.shape(), args, args.grid.q_tokens);
  }
  for (const auto& order : {args.q_order, args.kv_order}) {
    if (!order.empty() && static_cast<int64_t>(order.size()) != args.lanes.Count()) {
      throw InputError("[attention] {} token orders for {} lanes", order.size(),
                       args.lanes.Count());
    }
  }
  if (!args.k_center.empty() && std::ssize(args.k_center) != args.lanes.Count()) {
    throw InputError("[attention] {} centers of K for {} lanes", args.k_center.size(),
                     args.lanes.Count());
  }
  EQ_CHECK(args.masses == nullptr || !args.out_strips.merge, "masses of parts of rows");
  CheckTails(args);
  CheckRows(args);
}

}  // namespace equitile

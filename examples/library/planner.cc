// Which rank computes which rows: eight heads over three ranks, one of them as heavy as all others together.
#include <equitile/plan/planners/planner.h>
#include <equitile/plan/planners/report.h>

#include <cstdio>

int main() {
  using namespace equitile;
  const BlockGrid grid{.q_tokens = 28 * 64, .kv_tokens = 28 * 64, .block_tokens = 64};
  BlockMask mask({.batch = 1, .heads = 8}, grid);
  for (int64_t head = 0; head < 8; ++head) {
    for (int64_t q = 0; q < grid.QBlocks(); ++q) {
      const int64_t kept = head == 0 ? grid.KvBlocks() : 4;
      for (int64_t kv = 0; kv < kept; ++kv) mask.Set(head, q, kv);
    }
  }
  PlanOptions options;
  options.ranks = 3;
  for (const char* name : {"ulysses", "fractional"}) {
    RowCounts rows(mask);
    MadePlan made = MakePlan(ParsePlanner(name, options.ranks), mask, rows, options);
    const Score score = ScorePlan(made.plan, mask, rows, options.cost, options.cluster);
    const PlanReport report = MakeReport(made.plan, score, mask, rows, options);
    std::printf("%s: imbalance %.3f, work", name, report.rho);
    for (int64_t work : report.work_per_rank) std::printf(" %lld", static_cast<long long>(work));
    std::printf("\n");
  }
}

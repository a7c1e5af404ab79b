// Does a plan on many ranks give what one rank gives? The question behind `equitile verify`, apart
// from the command so that tests can ask it over communicators that lie.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "equitile/base/function_ref.h"
#include "equitile/base/thread_pool.h"
#include "equitile/comm/communicator.h"
#include "equitile/kernel/attention/attention.h"
#include "equitile/kernel/reference/attention_reference.h"
#include "equitile/plan/planners/planner.h"

namespace equitile {

struct VerifyCase {
  std::string planner;  // as asked for
  int32_t ranks = 1;
  std::string comm;
  bool same_bits = true;  // what is promised; else: within `bound`
  bool ok = false;
  double max_error = 0;  // largest difference to one rank, of output and log-sum-exp
  double bound = 0;      // 0 for same bits
};

// How far a row that was computed in `parts` parts and merged may be from the row in one go, for
// any two right f32 computations, with u = 2^-24: a score of size s errs by about sqrt(head_dim) u
// s, which is a relative error of its weight; an average over n keys by sqrt(n) u of the largest
// value; each merge rounds twice more. Independent errors, six sigmas, both computations.
//
// In integers, whose tokens are rounded alike: a weight is rounded against the largest of its chunk
// of 128 keys, evenly spread over 1 / WeightTop of that, in both runs against another chunk; a
// chunk and its largest weigh no more than the row. So an output is off by the root of 2 * 128 / 12
// such units of values, which are of variance 1, in quadrature with the weights' polynomial (of
// int8 half a step of its z), and by the rounding of what travels, 2^-15 of the largest value.
double SplitRowBound(int64_t head_dim, int64_t keys, int32_t parts, double max_score,
                     double max_value, Compute compute = Compute::kF32);

// The largest Euclidean norm of rows [][head_dim]; products of two bound scores.
double LargestNorm(std::span<const float> rows, int64_t head_dim);

// Random numbers, the answer of one rank, and what `kernel/reference` says about it.
class Verification {
 public:
  struct Options {
    int64_t head_dim = 64;
    Compute compute = Compute::kF32;
    uint64_t seed = 1;
    PlanOptions plan;  // ranks are set per case
  };
  // `poll` is called by the calling thread every few milliseconds: one rank's answer takes as long
  // as all ranks' together, and whoever computes it is not to be taken for dead.
  Verification(const LaneMasks& masks, Options options, ThreadPool& pool,
               FunctionRef<void()> poll = {});

  // The answer of one rank, on a sample of at least 64 rows (all, where there are fewer) with the
  // first, the last and an empty one among them.
  const AttentionError& OneRank() const { return one_rank_; }
  int64_t RowsChecked() const { return rows_checked_; }
  bool OneRankOk() const { return one_rank_.worst_fraction <= 1.0; }

  // Collective; the same answer on every rank.
  VerifyCase Check(Communicator& comm, ThreadPool& pool, const PlannerSpec& spec) const;

 private:
  std::vector<int64_t> SampleRows(const AttentionRows& rows) const;

  LaneMasks masks_;
  Options options_;
  std::vector<float> q_, k_, v_, out_;  // [batch][tokens][heads][head_dim]
  std::vector<float> lse_;              // [lanes][tokens]
  double max_score_ = 0, max_value_ = 0;
  AttentionError one_rank_;
  int64_t rows_checked_ = 0;
};

}  // namespace equitile

// Attention as one would write it on paper, in double precision: what the kernels are judged by,
// together with how far a right f32 computation may be off.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/kernel/attention/attention.h"

namespace equitile {

// One row of args.rows: its queries in the order of the lane.
struct AttentionReference {
  std::vector<double> out;            // [queries][head_dim]
  std::vector<double> lse;            // [queries]
  std::vector<double> out_tolerance;  // [queries][head_dim]
  std::vector<double> lse_tolerance;  // [queries]
  std::vector<double> masses;         // [kept blocks]
  std::vector<double> mass_tolerance;
};

// Q, K and V must be views; means of tails are those of K and V, whatever the call was given. The
// tolerance follows the computation, with u = 2^-24: a sum of n products in f32 errs by about
// sqrt(n) u sum|products| (rounding errors are independent and of mean 0: N. Higham, T. Mary, "A
// new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41, 2019), taken
// kSigmas times. A score is such a sum; an absolute error of a score is a relative error of its
// weight; an output is again such a sum, over weights that carry these errors. A mean errs as a sum
// over its block.
//
// Where the call computes in integers, queries, keys and values are off by their rounding, evenly
// spread over a unit (quadrature again), and so are weights against the largest of their chunk;
// those that round to 0 are off by all of themselves, all in one direction.
AttentionReference ReferenceAttentionRow(const AttentionArgs& args, int64_t row);

// The token that query `i` of the row belongs to.
int64_t QueryToken(const AttentionArgs& args, int64_t row, int64_t i);

struct AttentionError {
  double out = 0.0;  // worst |out - reference|
  double lse = 0.0;
  double tolerance = 0.0;  // at the element whose error is the largest fraction of its tolerance
  double worst_fraction = 0.0;             // error / tolerance there; at most 1 when right
  int64_t row = -1, token = -1, dim = -1;  // where; dim -1: lse
};

// Compares args.out and args.lse with the reference over the given rows.
AttentionError CompareWithReference(const AttentionArgs& args, std::span<const int64_t> rows);

}  // namespace equitile

// All options of the heads of one layer, tried on its live queries, keys and values: from lanes to
// errors. Local, and for a lane the same wherever it is computed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "equitile/search/choice/head_options.h"
#include "equitile/search/trials/chain_trial.h"

namespace equitile {

// Of one lane.
struct LaneTrials {
  double mean_square = 0;            // of the dense output
  std::vector<OptionError> options;  // [options]; full: no error
};

struct TrialPlace {
  TokenGrid grid;
  int64_t block_tokens = 64;
  int64_t heads = 1;
  std::vector<HeadOption> options;
};

class HeadTrials {
 public:
  // pool must outlive it.
  HeadTrials(TrialPlace place, ThreadPool& pool) : place_(std::move(place)), pool_(pool) {}

  // [lanes of the inputs]. column_masses: [heads][kv blocks] in home order, for stripes. rows: the
  // q blocks that are looked at, of every order alike.
  std::vector<LaneTrials> Try(const LaneInputs& inputs,
                              std::span<const std::vector<uint64_t>> column_masses,
                              std::span<const int64_t> rows);

  const TrialPlace& place() const { return place_; }
  static int64_t LaneBytes(int64_t tokens, int64_t head_dim);

 private:
  // Options [begin, end) are one chain.
  struct Chain {
    size_t begin, end;
  };
  std::vector<Chain> Chains() const;
  TokenOrder OrderOf(const Chain& chain) const;
  void TryIn(TokenOrder order, const LaneInputs& inputs,
             std::span<const std::vector<uint64_t>> column_masses, std::span<const int64_t> rows,
             std::vector<LaneTrials>& trials);
  std::vector<BlockMask> MasksOf(const Chain& chain, const LaneInputs& inputs,
                                 std::span<const std::vector<uint64_t>> column_masses,
                                 std::span<const int64_t> rows, const ChainTrial& trial) const;
  // The rows of a lane of this head, in the chain's order.
  LaneMasks RuleMask(const HeadOption& option, std::span<const uint64_t> column_masses) const;
  std::vector<BlockMask> RuleMasks(const Chain& chain, const LaneInputs& inputs,
                                   std::span<const std::vector<uint64_t>> column_masses) const;

  TrialPlace place_;
  ThreadPool& pool_;
  Workspace workspace_;
};

}  // namespace equitile

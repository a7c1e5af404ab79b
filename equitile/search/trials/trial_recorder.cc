#include "equitile/search/trials/trial_recorder.h"

#include "equitile/base/hash.h"
#include "equitile/search/trials/row_sample.h"

namespace equitile {
namespace {

// Of the sample of rows; any will do, but the same in every search.
constexpr uint64_t kSampleSeed = 9;

}  // namespace

TrialRecorder::TrialRecorder(HeadTrials& trials, Lanes lanes, int64_t passes, int64_t head_dim,
                             Communicator& comm, ThreadPool& pool)
    : trials_(trials),
      lanes_(lanes),
      passes_(passes),
      comm_(comm),
      gather_(lanes, trials.place().grid.Tokens(), head_dim, kRoundBytes, comm, pool) {}

std::vector<double> TrialRecorder::Try(const SelfAttentionCall& call, const ColumnMasses& columns,
                                       const Place& place) {
  const size_t options = trials_.place().options.size(), width = 1 + 3 * options;
  const int64_t rows = CeilDiv(trials_.place().grid.Tokens(), trials_.place().block_tokens);
  const std::vector<int64_t> sample =
      SampleRows(rows, SampledRows(rows), kSampleSeed,
                 Hasher().Add(place.first_prompt).Add(place.step).Add(call.layer).Digest());
  std::vector<double> values(static_cast<size_t>(lanes_.Count()) * width);
  for (int64_t round = 0; round < gather_.Rounds(); ++round) {
    const LaneInputs& inputs = gather_.Gather(call, round);
    const std::vector<LaneTrials> trials = trials_.Try(inputs, columns, sample);
    for (size_t i = 0; i < trials.size(); ++i) {
      double* to = values.data() + static_cast<size_t>(inputs.lanes[i]) * width;
      *to++ = trials[i].mean_square;
      for (const OptionError& option : trials[i].options) {
        *to++ = option.mse;
        *to++ = option.variance;
        *to++ = option.density;
      }
    }
    comm_.Poll();
  }
  // A lane is zero on all ranks but one: the sum is exact in any order.
  comm_.AllReduce(std::span(values), Reduce::kSum);
  return values;
}

void TrialRecorder::Record(const SelfAttentionCall& call, const ColumnMasses& columns,
                           const Place& place, ErrorTable& table) {
  const std::vector<double> values = Try(call, columns, place);
  const size_t options = trials_.place().options.size(), width = 1 + 3 * options;
  const auto passes = static_cast<double>(passes_);
  const auto lane_values = [&](int64_t prompt, int64_t pass, int64_t head) {
    return values.data() + static_cast<size_t>(lanes_.Lane(prompt * passes_ + pass, head)) * width;
  };
  for (int64_t i = 0; i < lanes_.batch / passes_; ++i) {
    const int64_t prompt = place.first_prompt + i;
    double square = 0;
    for (int64_t pass = 0; pass < passes_; ++pass) {
      for (int64_t head = 0; head < lanes_.heads; ++head) square += *lane_values(i, pass, head);
    }
    square /= passes * static_cast<double>(lanes_.heads);
    table.MeanSquare(prompt, place.step, call.layer) = square;
    for (int64_t head = 0; head < lanes_.heads; ++head) {
      for (size_t option = 0; option < options; ++option) {
        double mse = 0, variance = 0, density = 0;
        for (int64_t pass = 0; pass < passes_; ++pass) {
          const double* of_option = lane_values(i, pass, head) + 1 + 3 * option;
          mse += of_option[0];
          variance += of_option[1];
          density += of_option[2];
        }
        const ErrorTable::Key key = {prompt, place.step, call.layer, head,
                                     static_cast<int64_t>(option)};
        table.Mse(key) = mse / passes;
        table.Density(key) = density / passes;
        if (square > 0) table.Variance(key) += variance / (passes * passes * square * square);
      }
    }
  }
}

}  // namespace equitile

// What calibration has found: for every prompt, step, layer and head the error and the density of
// every option, averaged over guidance passes. All choices are functions of this value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "equitile/sparsity/source/source_state.h"

namespace equitile {

struct ErrorTableShape {
  int64_t prompts = 0, steps = 0, layers = 0, heads = 0, options = 0;
  // Prompts take turns: each is looked at in every so many-th step, and every step with as many of
  // them. At most as many as there are prompts.
  int64_t turns = 1;
  friend bool operator==(const ErrorTableShape&, const ErrorTableShape&) = default;
};

class ErrorTable {
 public:
  ErrorTable() = default;
  explicit ErrorTable(const ErrorTableShape& shape);

  struct Key {
    int64_t prompt = 0, step = 0, layer = 0, head = 0, option = 0;
  };
  double& Mse(const Key& key) { return mse_[IndexOf(key)]; }
  double Mse(const Key& key) const { return mse_[IndexOf(key)]; }
  double& Density(const Key& key) { return density_[IndexOf(key)]; }
  double Density(const Key& key) const { return density_[IndexOf(key)]; }
  // Of the estimates as parts of the layer's mean square, summed over prompts; key.prompt does not
  // count.
  double& Variance(const Key& key) { return variance_[VarianceIndex(key)]; }
  double Variance(const Key& key) const { return variance_[VarianceIndex(key)]; }
  // Mean square of the layer's dense output, over all heads and passes.
  double& MeanSquare(int64_t prompt, int64_t step, int64_t layer);
  double MeanSquare(int64_t prompt, int64_t step, int64_t layer) const;

  const ErrorTableShape& shape() const { return shape_; }
  // Whether it is the prompt's turn in this step; the table has nothing where it is not.
  bool Has(int64_t prompt, int64_t step) const { return (prompt + step) % shape_.turns == 0; }
  static int64_t Bytes(const ErrorTableShape& shape);

  // For checkpoints. Restore throws InputError where the state is of another shape.
  void AddTo(SourceState& state, const std::string& prefix = "") const;
  void Restore(const SourceState& state, const std::string& prefix = "");

 private:
  size_t IndexOf(const Key& key) const;
  size_t VarianceIndex(Key key) const;
  size_t SquareIndex(int64_t prompt, int64_t step, int64_t layer) const;

  ErrorTableShape shape_;
  std::vector<double> mse_, density_;  // [prompts][steps][layers][heads][options]
  std::vector<double> variance_;       // [steps][layers][heads][options]
  std::vector<double> mean_square_;    // [prompts][steps][layers]
};

}  // namespace equitile

#include "equitile/search/choice/error_table.h"
#include "equitile/search/state/checkpoint_numbers.h"

namespace equitile {
ErrorTable::ErrorTable(const ErrorTableShape& shape)
    : shape_(shape),
      mse_(static_cast<size_t>(shape.prompts * shape.steps * shape.layers * shape.heads *
                               shape.options)),
      density_(mse_.size()),
      variance_(static_cast<size_t>(shape.steps * shape.layers * shape.heads * shape.options)),
      mean_square_(static_cast<size_t>(shape.prompts * shape.steps * shape.layers)) {}

size_t ErrorTable::IndexOf(const Key& key) const {
  const int64_t call = (key.prompt * shape_.steps + key.step) * shape_.layers + key.layer;
  return static_cast<size_t>((call * shape_.heads + key.head) * shape_.options + key.option);
}

size_t ErrorTable::VarianceIndex(Key key) const {
  key.prompt = 0;
  return IndexOf(key);
}

size_t ErrorTable::SquareIndex(int64_t prompt, int64_t step, int64_t layer) const {
  return static_cast<size_t>((prompt * shape_.steps + step) * shape_.layers + layer);
}

double& ErrorTable::MeanSquare(int64_t prompt, int64_t step, int64_t layer) {
  return mean_square_[SquareIndex(prompt, step, layer)];
}
double ErrorTable::MeanSquare(int64_t prompt, int64_t step, int64_t layer) const {
  return mean_square_[SquareIndex(prompt, step, layer)];
}

int64_t ErrorTable::Bytes(const ErrorTableShape& shape) {
  const int64_t calls = shape.prompts * shape.steps * shape.layers;
  return static_cast<int64_t>(sizeof(double)) *
         (calls * (2 * shape.heads * shape.options + 1) +
          shape.steps * shape.layers * shape.heads * shape.options);
}

void ErrorTable::AddTo(SourceState& state, const std::string& prefix) const {
  PutNumbers(mse_, state[prefix + "errors"]);
  PutNumbers(density_, state[prefix + "densities"]);
  PutNumbers(variance_, state[prefix + "variances"]);
  PutNumbers(mean_square_, state[prefix + "squares"]);
}

void ErrorTable::Restore(const SourceState& state, const std::string& prefix) {
  mse_ = TakeNumbers<double>(state, prefix + "errors", mse_.size());
  density_ = TakeNumbers<double>(state, prefix + "densities", density_.size());
  variance_ = TakeNumbers<double>(state, prefix + "variances", variance_.size());
  mean_square_ = TakeNumbers<double>(state, prefix + "squares", mean_square_.size());
}

}  // namespace equitile

#include "equitile/exec/home_rows.h"

#include "equitile/base/error.h"

namespace equitile {

HomeRows::HomeRows(const HomeMap& homes, Lanes lanes, int32_t rank)
    : lanes_(lanes), item_tokens_(homes.Tokens(Side::kQuery)), item_stride_(item_tokens_) {
  std::vector<int64_t> held;  // items of which tokens are here
  for (int64_t item = 0; item < lanes.batch; ++item) {
    const Range own = homes.RankTokens(Side::kQuery, rank, item);
    tokens_.push_back(own);
    row_of_token_0_.push_back(count_ - own.begin);
    count_ += own.size();
    if (!own.empty()) held.push_back(item);
  }
  const auto row = [&](int64_t item) { return row_of_token_0_[static_cast<size_t>(item)]; };
  if (held.size() >= 2) item_stride_ = (row(held[1]) - row(held[0])) / (held[1] - held[0]);
  if (!held.empty()) offset_ = row(held[0]) - held[0] * item_stride_;
  for (const int64_t item : held) form_view_ &= row(item) == offset_ + item * item_stride_;
}

HomeRows::Token HomeRows::TokenOf(int64_t row) const {
  int64_t item = 0;
  for (; row >= TokensOf(item).size(); ++item) row -= TokensOf(item).size();
  return {.item = item, .token = TokensOf(item).begin + row};
}

ConstView HomeRows::Input(const float* rows, int64_t head_dim, int64_t token_stride,
                          int64_t head_stride) const {
  EQ_CHECK(form_view_, "home tokens of {} batch items are not evenly apart", lanes_.batch);
  return ConstView(rows + offset_ * token_stride, DType::kF32,
                   Shape{lanes_.batch, item_tokens_, lanes_.heads, head_dim},
                   Strides{item_stride_ * token_stride, token_stride, head_stride, 1});
}

View HomeRows::Output(float* rows, int64_t head_dim) const {
  EQ_CHECK(form_view_, "home tokens of {} batch items are not evenly apart", lanes_.batch);
  const int64_t row = lanes_.heads * head_dim;
  return View(rows + offset_ * row, DType::kF32,
              Shape{lanes_.batch, item_tokens_, lanes_.heads, head_dim},
              Strides{item_stride_ * row, row, head_dim, 1});
}

}  // namespace equitile

// How the tokens of a rank's home lie in memory between attention layers: those of batch item 0,
// then those of item 1, and so on. What callers hand to the executor and get back is laid out so.
#pragma once

#include <cstdint>
#include <vector>

#include "equitile/plan/core/home_map.h"
#include "equitile/tensor/view.h"

namespace equitile {

class HomeRows {
 public:
  HomeRows(const HomeMap& homes, Lanes lanes, int32_t rank);

  int64_t Count() const { return count_; }  // of all batch items
  Range TokensOf(int64_t item) const { return tokens_[static_cast<size_t>(item)]; }
  // `token` must be at home.
  int64_t RowOf(int64_t item, int64_t token) const {
    return row_of_token_0_[static_cast<size_t>(item)] + token;
  }
  struct Token {
    int64_t item = 0, token = 0;
  };
  Token TokenOf(int64_t row) const;

  // Whether token t of item b is row offset + b * item_stride + t for all of them, so that the rows
  // are a view. Always so in the default cut, with two items, and where every item is cut alike.
  bool FormView() const { return form_view_; }
  // The rows as views [batch, tokens of an item, heads, head_dim] of which only home tokens may be
  // touched. They must form one.
  ConstView Input(const float* rows, int64_t head_dim, int64_t token_stride,
                  int64_t head_stride) const;        // strides in floats
  View Output(float* rows, int64_t head_dim) const;  // [Count()][heads][head_dim]

 private:
  Lanes lanes_;
  int64_t count_ = 0, item_tokens_ = 0;
  std::vector<Range> tokens_;            // [batch]
  std::vector<int64_t> row_of_token_0_;  // [batch]
  bool form_view_ = true;
  int64_t offset_ = 0, item_stride_ = 0;  // rows
};

}  // namespace equitile

// The unigram model itself: the likeliest way to cut a text into pieces of a vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "equitile/io/records/tokenizer_file.h"

namespace equitile {

class Unigram {
 public:
  Unigram(std::vector<TokenizerSpec::Piece> pieces, std::optional<int32_t> unk_id,
          bool byte_fallback);
  // Pieces are views into pieces_.
  Unigram(const Unigram&) = delete;
  Unigram& operator=(const Unigram&) = delete;

  std::optional<int32_t> Find(std::string_view piece) const;

  // Appends the ids of valid UTF-8 `text`. Runs of characters that no piece covers are one unknown:
  // its bytes as pieces <0xHH>, or unk_id. Throws InputError where a model without unk_id meets
  // one.
  void Encode(std::string_view text, std::vector<int32_t>& ids) const;

 private:
  void AppendUnknown(std::string_view text, std::vector<int32_t>& ids) const;

  std::vector<TokenizerSpec::Piece> pieces_;
  std::unordered_map<std::string_view, int32_t> by_text_;
  size_t longest_ = 0;  // bytes of a piece
  double unknown_score_ = 0;
  std::optional<int32_t> unk_id_;
  bool byte_fallback_ = false;
  std::optional<int32_t> byte_ids_[256];
};

}  // namespace equitile

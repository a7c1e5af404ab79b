#include "equitile/model/text/tokenizer.h"

#include "equitile/base/error.h"
#include "equitile/model/text/unicode.h"

namespace equitile {

TokenizerKind ParseTokenizerKind(std::string_view name) {
  if (name == "json") return TokenizerKind::kJson;
  if (name == "transformers5") return TokenizerKind::kTransformers5;
  if (name == "sentencepiece") return TokenizerKind::kSentencePiece;
  throw InputError("[model] tokenizer '{}': unknown; known are json, transformers5, sentencepiece",
                   name);
}

Tokenizer Tokenizer::Open(const std::filesystem::path& folder, TokenizerKind kind) {
  const std::filesystem::path json = folder / "tokenizer.json", pieces = folder / "spiece.model";
  const bool from_pieces = kind == TokenizerKind::kSentencePiece ||
                           (kind == TokenizerKind::kJson && !std::filesystem::exists(json) &&
                            std::filesystem::exists(pieces));
  if (from_pieces) return {pieces.string(), OpenSentencePiece(pieces)};
  return {json.string(), OpenTokenizerJson(json, kind == TokenizerKind::kTransformers5)};
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, int64_t max_tokens) const {
  DecodeUtf8OrThrow(text, "prompt");
  std::vector<int32_t> pieces = reader_->Pieces(text);
  const auto around = static_cast<int64_t>(reader_->ids_before.size() + reader_->ids_after.size());
  if (max_tokens <= around) {
    throw InputError("[model] {} text tokens: too few; this tokenizer needs more than {}",
                     max_tokens, around);
  }
  const auto room = static_cast<size_t>(max_tokens - around);
  if (pieces.size() > room) pieces.resize(room);
  std::vector<int32_t> ids = reader_->ids_before;
  ids.insert(ids.end(), pieces.begin(), pieces.end());
  ids.insert(ids.end(), reader_->ids_after.begin(), reader_->ids_after.end());
  return ids;
}

}  // namespace equitile

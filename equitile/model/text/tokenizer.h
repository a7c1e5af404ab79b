// Prompts as token ids, by the checkpoint's own tokenizer and in the three ways in which the world
// reads it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace equitile {

enum class TokenizerKind {
  kJson,           // tokenizer.json as it stands (transformers 4, original Wan)
  kTransformers5,  // what transformers 5 makes of it: no byte pieces, unknown characters are id 2
  kSentencePiece,  // spiece.model
};
TokenizerKind ParseTokenizerKind(std::string_view name);  // json | transformers5 | sentencepiece

// Immutable; any thread may encode.
class Tokenizer {
 public:
  // Reads tokenizer.json or spiece.model of `folder`; kJson takes spiece.model where there is no
  // tokenizer.json. Throws InputError.
  static Tokenizer Open(const std::filesystem::path& folder, TokenizerKind kind);

  // Of a cleaned prompt: at most `max_tokens` ids, </s> at the end, no padding. Throws InputError
  // where the text is not UTF-8.
  std::vector<int32_t> Encode(std::string_view text, int64_t max_tokens) const;

  const std::string& source() const { return source_; }  // the file

  class Reader {
   public:
    virtual ~Reader() = default;
    virtual std::vector<int32_t> Pieces(std::string_view text) const = 0;
    std::vector<int32_t> ids_before, ids_after;
  };

 private:
  Tokenizer(std::string source, std::unique_ptr<Reader> reader)
      : source_(std::move(source)), reader_(std::move(reader)) {}

  std::string source_;
  std::unique_ptr<Reader> reader_;
};

// The readers; tokenizer_json.cc and tokenizer_sentencepiece.cc.
std::unique_ptr<Tokenizer::Reader> OpenTokenizerJson(const std::filesystem::path& path,
                                                     bool as_transformers5);
std::unique_ptr<Tokenizer::Reader> OpenSentencePiece(const std::filesystem::path& path);

}  // namespace equitile

// tokenizer.json of a checkpoint as a value: the unigram models that the T5 family uses, and the
// steps around them. What equitile cannot follow exactly is refused here, not ignored later.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace equitile {

struct TokenizerSpec {
  struct Piece {
    std::string text;
    double score = 0;
  };
  // Cut out of the text before anything else, or after normalizing where `normalized`.
  struct AddedToken {
    std::string text;
    int32_t id = 0;
    bool single_word = false;  // only where no letter or digit touches it
    bool lstrip = false;       // takes the spaces before it along
    bool rstrip = false;
    bool normalized = false;
  };
  // A step on the text of one segment.
  struct Normalizer {
    enum class Kind { kCharacterMap, kStrip, kReplaceText, kReplaceRun };
    Kind kind = Kind::kStrip;
    std::string character_map;         // kCharacterMap: the blob (model/text/character_map.h)
    bool left = false, right = false;  // kStrip
    std::string pattern;               // kReplaceText: a text; kReplaceRun: one character
    int64_t least = 0;                 // kReplaceRun: repeated at least so often
    std::string content;               // what replaces it
  };
  // A step that cuts a segment.
  struct Splitter {
    enum class Kind { kWhitespace, kMetaspace };
    enum class Prepend { kAlways, kFirst, kNever };
    Kind kind = Kind::kMetaspace;
    std::string replacement;  // kMetaspace: what stands for a space
    Prepend prepend = Prepend::kAlways;
    bool split = true;
  };

  std::vector<Piece> pieces;  // by id
  std::optional<int32_t> unk_id;
  bool byte_fallback = false;
  std::vector<AddedToken> added_tokens;
  std::vector<Normalizer> normalizers;
  std::vector<Splitter> splitters;
  std::vector<int32_t> ids_before, ids_after;  // what the post-processor puts around a text
};

// Both throw InputError; `name` stands for the file in messages.
TokenizerSpec ParseTokenizer(std::string_view json, std::string_view name);
TokenizerSpec ReadTokenizer(const std::filesystem::path& path);

}  // namespace equitile

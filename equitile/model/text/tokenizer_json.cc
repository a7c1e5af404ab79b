// tokenizer.json: cut added tokens out, normalize what is between them, cut that into words, find
// the likeliest pieces of each word.
#include <algorithm>

#include "equitile/base/error.h"
#include "equitile/io/records/tokenizer_file.h"
#include "equitile/model/text/character_map.h"
#include "equitile/model/text/tokenizer.h"
#include "equitile/model/text/unicode.h"
#include "equitile/model/text/unigram.h"

namespace equitile {
namespace {

using AddedToken = TokenizerSpec::AddedToken;
using Normalizer = TokenizerSpec::Normalizer;
using Splitter = TokenizerSpec::Splitter;

constexpr int32_t kTransformers5UnkId = 2;  // whatever the file says

// Text between added tokens, or one of them.
struct Segment {
  std::string text;
  std::optional<int32_t> id;
  bool at_start = false;  // of the prompt
};

// A UTF-8 text without the spaces at its ends.
std::string Stripped(std::string_view text, bool left, bool right) {
  std::u32string codes = DecodeUtf8(text).value_or(U"");
  size_t begin = 0, end = codes.size();
  while (left && begin < end && IsSpace(codes[begin])) ++begin;
  while (right && end > begin && IsSpace(codes[end - 1])) --end;
  return EncodeUtf8(std::u32string_view(codes).substr(begin, end - begin));
}

std::string ReplacedText(std::string_view text, std::string_view pattern,
                         std::string_view content) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (text.substr(at).starts_with(pattern)) {
      out += content;
      at += pattern.size();
    } else {
      out += text[at++];
    }
  }
  return out;
}

std::string ReplacedRuns(std::string_view text, const Normalizer& step) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_not_of(step.pattern[0], at), text.size());
    if (end - at >= static_cast<size_t>(step.least)) {
      out += step.content;
      at = end;
    } else {
      const size_t next = std::max(end, at + 1);
      out += text.substr(at, next - at);
      at = next;
    }
  }
  return out;
}

bool IsWordEnd(std::string_view text) {
  const auto codes = DecodeUtf8(text);
  return codes && !codes->empty() && IsWordCharacter(codes->back());
}
bool IsWordStart(std::string_view text) {
  const auto codes = DecodeUtf8(text);
  return codes && !codes->empty() && IsWordCharacter(codes->front());
}

class TokenCutter {
 public:
  TokenCutter() = default;
  explicit TokenCutter(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
    // The longest token that starts at a place is the one found.
    std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
      return a.text.size() > b.text.size();
    });
  }

  std::vector<Segment> Cut(const Segment& segment) const {
    std::vector<Segment> out;
    const std::string_view text = segment.text;
    size_t done = 0;
    const auto add = [&](size_t begin, size_t end, std::optional<int32_t> id) {
      if (end > begin || id) {
        out.push_back(
            {std::string(text.substr(begin, end - begin)), id, segment.at_start && begin == 0});
      }
    };
    for (size_t at = 0; at < text.size();) {
      const AddedToken* token = Find(text.substr(at));
      if (token == nullptr) {
        ++at;
        continue;
      }
      size_t begin = at, end = at + token->text.size();
      at = end;
      if (token->single_word &&
          (IsWordEnd(text.substr(0, begin)) || IsWordStart(text.substr(end)))) {
        continue;
      }
      if (token->lstrip) {
        begin = std::max(done, Stripped(text.substr(0, begin), false, true).size());
      }
      if (token->rstrip) {
        const std::string_view rest = text.substr(end);
        end += rest.size() - Stripped(rest, true, false).size();
        at = end;
      }
      add(done, begin, std::nullopt);
      add(begin, end, token->id);
      done = end;
    }
    add(done, text.size(), std::nullopt);
    return out;
  }

 private:
  const AddedToken* Find(std::string_view text) const {
    for (const AddedToken& token : tokens_) {
      if (text.starts_with(token.text)) return &token;
    }
    return nullptr;
  }

  std::vector<AddedToken> tokens_;  // the longest first
};

class JsonReader : public Tokenizer::Reader {
 public:
  JsonReader(TokenizerSpec spec)
      : unigram_(std::move(spec.pieces), spec.unk_id, spec.byte_fallback),
        normalizers_(std::move(spec.normalizers)),
        splitters_(std::move(spec.splitters)) {
    ids_before = std::move(spec.ids_before);
    ids_after = std::move(spec.ids_after);
    for (const Normalizer& step : normalizers_) {
      if (step.kind == Normalizer::Kind::kCharacterMap) maps_.emplace_back(step.character_map);
    }
    std::vector<AddedToken> raw, normalized;
    for (AddedToken& token : spec.added_tokens) {
      if (!token.normalized) {
        raw.push_back(std::move(token));
        continue;
      }
      token.text = Normalized(token.text);
      if (!token.text.empty()) normalized.push_back(std::move(token));
    }
    raw_tokens_ = TokenCutter(std::move(raw));
    normalized_tokens_ = TokenCutter(std::move(normalized));
  }

  std::vector<int32_t> Pieces(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (Segment& segment : raw_tokens_.Cut({std::string(text), std::nullopt, true})) {
      if (segment.id) {
        ids.push_back(*segment.id);
        continue;
      }
      segment.text = Normalized(segment.text);
      for (const Segment& part : normalized_tokens_.Cut(segment)) {
        if (part.id) {
          ids.push_back(*part.id);
        } else {
          for (const std::string& word : Words(part)) unigram_.Encode(word, ids);
        }
      }
    }
    return ids;
  }

 private:
  std::string Normalized(std::string text) const {
    auto map = maps_.begin();
    for (const Normalizer& step : normalizers_) {
      switch (step.kind) {
        case Normalizer::Kind::kCharacterMap:
          text = (map++)->Apply(DecodeUtf8(text).value_or(U""));
          break;
        case Normalizer::Kind::kStrip:
          text = Stripped(text, step.left, step.right);
          break;
        case Normalizer::Kind::kReplaceText:
          text = ReplacedText(text, step.pattern, step.content);
          break;
        case Normalizer::Kind::kReplaceRun:
          text = ReplacedRuns(text, step);
          break;
      }
    }
    return text;
  }

  std::vector<std::string> Words(const Segment& segment) const {
    std::vector<Segment> words{segment};
    for (const Splitter& step : splitters_) {
      std::vector<Segment> cut;
      for (const Segment& word : words) {
        if (step.kind == Splitter::Kind::kWhitespace) {
          SplitAtSpaces(word, cut);
        } else {
          SplitMetaspace(word, step, cut);
        }
      }
      words = std::move(cut);
    }
    std::vector<std::string> texts;
    for (Segment& word : words) texts.push_back(std::move(word.text));
    return texts;
  }

  static void SplitAtSpaces(const Segment& word, std::vector<Segment>& out) {
    std::string part;
    bool at_start = word.at_start;
    const auto flush = [&] {
      if (!part.empty()) out.push_back({part, std::nullopt, at_start});
      at_start = false;
      part.clear();
    };
    for (const char32_t code : DecodeUtf8(word.text).value_or(U"")) {
      if (IsSpace(code)) {
        flush();
      } else {
        AppendUtf8(code, part);
      }
    }
    flush();
  }

  static void SplitMetaspace(const Segment& word, const Splitter& step, std::vector<Segment>& out) {
    const std::string& mark = step.replacement;
    std::string text = ReplacedText(word.text, " ", mark);
    const bool prepend = step.prepend == Splitter::Prepend::kAlways ||
                         (step.prepend == Splitter::Prepend::kFirst && word.at_start);
    if (prepend && !text.starts_with(mark)) text = mark + text;
    bool at_start = word.at_start;
    for (size_t begin = 0; begin < text.size();) {
      const size_t next = step.split ? text.find(mark, begin + 1) : text.npos;
      const size_t end = std::min(next, text.size());
      out.push_back({text.substr(begin, end - begin), std::nullopt, at_start});
      at_start = false;
      begin = end;
    }
  }

  Unigram unigram_;
  std::vector<Normalizer> normalizers_;
  std::vector<CharacterMap> maps_;  // of the normalizers that are one, in their order
  std::vector<Splitter> splitters_;
  TokenCutter raw_tokens_, normalized_tokens_;
};

// Vocabulary, character map, added tokens and post-processor stay; all else is transformers' own.
void RebuildAsTransformers5(TokenizerSpec& spec) {
  std::erase_if(spec.normalizers, [](const Normalizer& step) {
    return step.kind != Normalizer::Kind::kCharacterMap;
  });
  const Splitter spaces{.kind = Splitter::Kind::kWhitespace, .replacement = {}};
  const Splitter metaspace{.kind = Splitter::Kind::kMetaspace, .replacement = "\u2581"};
  spec.splitters = {spaces, metaspace};
  spec.byte_fallback = false;
  spec.unk_id = kTransformers5UnkId;
}

}  // namespace

std::unique_ptr<Tokenizer::Reader> OpenTokenizerJson(const std::filesystem::path& path,
                                                     bool as_transformers5) {
  TokenizerSpec spec = ReadTokenizer(path);
  if (as_transformers5) RebuildAsTransformers5(spec);
  return std::make_unique<JsonReader>(std::move(spec));
}

}  // namespace equitile

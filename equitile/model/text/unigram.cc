#include "equitile/model/text/unigram.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "equitile/base/error.h"

namespace equitile {
namespace {

constexpr double kUnknownPenalty = 10.0;  // below the worst piece; SentencePiece's constant
constexpr int32_t kNoId = -1;

size_t CharacterBytes(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

}  // namespace

Unigram::Unigram(std::vector<TokenizerSpec::Piece> pieces, std::optional<int32_t> unk_id,
                 bool byte_fallback)
    : pieces_(std::move(pieces)), unk_id_(unk_id), byte_fallback_(byte_fallback) {
  double lowest = std::numeric_limits<double>::infinity();
  by_text_.reserve(pieces_.size());
  for (size_t id = 0; id < pieces_.size(); ++id) {
    by_text_[pieces_[id].text] = static_cast<int32_t>(id);  // the last of equal ones counts
    longest_ = std::max(longest_, pieces_[id].text.size());
    lowest = std::min(lowest, pieces_[id].score);
  }
  unknown_score_ = lowest - kUnknownPenalty;
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = Find(fmt::format("<0x{:02X}>", byte));
  }
}

std::optional<int32_t> Unigram::Find(std::string_view piece) const {
  const auto found = by_text_.find(piece);
  return found == by_text_.end() ? std::nullopt : std::optional(found->second);
}

void Unigram::Encode(std::string_view text, std::vector<int32_t>& ids) const {
  struct Best {
    double score = 0;
    size_t start = 0;
    int32_t id = kNoId;
    bool reached = false;
  };
  std::vector<Best> best(text.size() + 1);
  best[0].reached = true;
  const auto offer = [&best](size_t start, size_t end, int32_t id, double score) {
    const double total = best[start].score + score;
    if (!best[end].reached || total > best[end].score) best[end] = {total, start, id, true};
  };
  for (size_t start = 0; start < text.size();) {
    const size_t character = std::min(CharacterBytes(text[start]), text.size() - start);
    bool covered = false;
    const size_t longest = std::min(longest_, text.size() - start);
    for (size_t length = 1; length <= longest; ++length) {
      const auto id = Find(text.substr(start, length));
      if (!id) continue;
      offer(start, start + length, *id, pieces_[static_cast<size_t>(*id)].score);
      covered = covered || length == character;
    }
    const int32_t unknown = unk_id_.value_or(kNoId);
    if (!covered) offer(start, start + character, unknown, unknown_score_);
    start += character;
  }

  std::vector<std::string_view> found;  // from the end
  bool last_unknown = false;
  for (size_t end = text.size(); end > 0; end = best[end].start) {
    const Best& piece = best[end];
    const bool unknown = piece.id == unk_id_.value_or(kNoId);
    std::string_view span = text.substr(piece.start, end - piece.start);
    if (unknown && last_unknown) {
      found.back() = text.substr(piece.start, span.size() + found.back().size());
    } else {
      found.push_back(span);
    }
    last_unknown = unknown;
  }
  for (auto span = found.rbegin(); span != found.rend(); ++span) {
    if (const auto id = Find(*span)) {
      ids.push_back(*id);
    } else {
      AppendUnknown(*span, ids);
    }
  }
}

void Unigram::AppendUnknown(std::string_view text, std::vector<int32_t>& ids) const {
  const auto byte_id = [this](char c) { return byte_ids_[static_cast<uint8_t>(c)]; };
  if (byte_fallback_ &&
      std::all_of(text.begin(), text.end(), [&](char c) { return byte_id(c).has_value(); })) {
    for (const char c : text) ids.push_back(*byte_id(c));
    return;
  }
  if (!unk_id_) {
    throw InputError(
        "[model] tokenizer: no piece for '{}', and no unk_id; the text needs other words", text);
  }
  ids.push_back(*unk_id_);
}

}  // namespace equitile

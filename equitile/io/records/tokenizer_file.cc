#include "equitile/io/records/tokenizer_file.h"

#include <algorithm>

#include "equitile/base/base64.h"
#include "equitile/io/json_value.h"

namespace equitile {
namespace {

constexpr int64_t kMaxIds = int64_t{1} << 24;  // far above any vocabulary

bool Flag(const JsonValue& object, const char* key, bool otherwise) {
  const auto value = object.Find(key);
  return value ? value->Bool() : otherwise;
}

std::string Type(const JsonValue& object) { return object["type"].Text(); }

// Calls `each` for the one step or for every step of a Sequence. Sequences may nest, but not deeper
// than anybody writes them.
template <typename Each>
void ForSteps(const JsonValue& step, const char* list, const Each& each, int depth = 0) {
  if (Type(step) != "Sequence") return each(step);
  if (depth > 8) step.Fail("is nested too deeply");
  const JsonValue steps = step[list];
  for (int64_t i = 0; i < steps.Size(); ++i) ForSteps(steps.At(i), list, each, depth + 1);
}

// " {2,}" as character and count; the only regular expression that these files use.
void ReadRun(const JsonValue& pattern, TokenizerSpec::Normalizer& normalizer) {
  const JsonValue regex = pattern["Regex"];
  const std::string text = regex.Text();
  if (text.size() != 5 || !text.ends_with(",}") || text[1] != '{' || text[2] < '1' ||
      text[2] > '9' ||
      std::string_view("\\.[](){}^$*+?|").find(text[0]) != std::string_view::npos) {
    regex.Fail("is not a repetition such as \" {{2,}}\"; no other expression is known");
  }
  normalizer.kind = TokenizerSpec::Normalizer::Kind::kReplaceRun;
  normalizer.pattern = text.substr(0, 1);
  normalizer.least = text[2] - '0';
}

TokenizerSpec::Normalizer ReadNormalizer(const JsonValue& step) {
  using Kind = TokenizerSpec::Normalizer::Kind;
  TokenizerSpec::Normalizer normalizer;
  const std::string type = Type(step);
  if (type == "Precompiled") {
    normalizer.kind = Kind::kCharacterMap;
    const JsonValue blob = step["precompiled_charsmap"];
    auto bytes = DecodeBase64(blob.Text());
    if (!bytes) blob.Fail("is not base64");
    normalizer.character_map = std::move(*bytes);
  } else if (type == "Strip") {
    normalizer.kind = Kind::kStrip;
    normalizer.left = Flag(step, "strip_left", false);
    normalizer.right = Flag(step, "strip_right", false);
  } else if (type == "Replace") {
    const JsonValue pattern = step["pattern"];
    normalizer.content = step["content"].Text();
    if (const auto text = pattern.Find("String")) {
      normalizer.kind = Kind::kReplaceText;
      normalizer.pattern = text->Text();
      if (normalizer.pattern.empty()) text->Fail("must not be empty");
    } else {
      ReadRun(pattern, normalizer);
    }
  } else {
    step.Fail("unknown normalizer '{}'; known are Precompiled, Strip, Replace, Sequence", type);
  }
  return normalizer;
}

TokenizerSpec::Splitter ReadSplitter(const JsonValue& step) {
  using Prepend = TokenizerSpec::Splitter::Prepend;
  TokenizerSpec::Splitter splitter;
  const std::string type = Type(step);
  if (type == "WhitespaceSplit") {
    splitter.kind = TokenizerSpec::Splitter::Kind::kWhitespace;
  } else if (type == "Metaspace") {
    splitter.replacement = step["replacement"].Text();
    if (splitter.replacement.empty()) step.Fail("'replacement' must not be empty");
    splitter.split = Flag(step, "split", true);
    if (!Flag(step, "add_prefix_space", true)) splitter.prepend = Prepend::kNever;
    if (const auto scheme = step.Find("prepend_scheme")) {
      const std::string name = scheme->Text();
      if (name != "always" && name != "first" && name != "never") {
        scheme->Fail("must be always, first or never");
      }
      splitter.prepend = name == "always"  ? Prepend::kAlways
                         : name == "first" ? Prepend::kFirst
                                           : Prepend::kNever;
    }
  } else {
    step.Fail("unknown pre-tokenizer '{}'; known are WhitespaceSplit, Metaspace, Sequence", type);
  }
  return splitter;
}

void ReadModel(const JsonValue& model, TokenizerSpec& spec) {
  if (const auto type = model.Find("type"); type && type->Text() != "Unigram") {
    type->Fail("must be Unigram");
  }
  const JsonValue vocabulary = model["vocab"];
  const int64_t count = vocabulary.Size();
  if (count == 0 || count > kMaxIds) vocabulary.Fail("has {} pieces", count);
  spec.pieces.reserve(static_cast<size_t>(count));
  for (int64_t id = 0; id < count; ++id) {
    const JsonValue piece = vocabulary.At(id);
    piece.Size(2);
    spec.pieces.push_back({piece.At(0).Text(), piece.At(1).Number(-1e300, 1e300)});
  }
  if (const auto unk = model.Find("unk_id")) {
    spec.unk_id = static_cast<int32_t>(unk->Integer(0, count - 1));
  }
  spec.byte_fallback = Flag(model, "byte_fallback", false);
}

void ReadAddedTokens(const JsonValue& tokens, TokenizerSpec& spec) {
  for (int64_t i = 0; i < tokens.Size(); ++i) {
    const JsonValue token = tokens.At(i);
    TokenizerSpec::AddedToken added;
    const JsonValue content = token["content"];
    added.text = content.Text();
    if (added.text.empty()) continue;  // matches nothing
    added.id = static_cast<int32_t>(token["id"].Integer(0, kMaxIds));
    added.single_word = Flag(token, "single_word", false);
    added.lstrip = Flag(token, "lstrip", false);
    added.rstrip = Flag(token, "rstrip", false);
    added.normalized = Flag(token, "normalized", !Flag(token, "special", false));
    spec.added_tokens.push_back(std::move(added));
  }
}

// "$A </s>": ids before and after the text.
void ReadTemplate(const JsonValue& processor, TokenizerSpec& spec) {
  if (Type(processor) != "TemplateProcessing") {
    processor.Fail("unknown post-processor '{}'; known is TemplateProcessing", Type(processor));
  }
  const JsonValue single = processor["single"];
  bool seen_text = false;
  for (int64_t i = 0; i < single.Size(); ++i) {
    const JsonValue part = single.At(i);
    const auto special = part.Find("SpecialToken");
    if (!special) {
      if (!part.Find("Sequence") || seen_text) part.Fail("must be one text and special tokens");
      seen_text = true;
      continue;
    }
    const std::string name = (*special)["id"].Text();
    const JsonValue known = processor["special_tokens"];
    const JsonValue token = known[name.c_str()];
    const std::vector<int32_t> ids = token["ids"].Integers(0, kMaxIds);
    auto& side = seen_text ? spec.ids_after : spec.ids_before;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (!seen_text) single.Fail("has no text");
}

}  // namespace

TokenizerSpec ParseTokenizer(std::string_view json, std::string_view name) {
  const Json document = ParseJson(json, name);
  const JsonValue root(document, name);
  TokenizerSpec spec;
  ReadModel(root["model"], spec);
  if (const auto tokens = root.Find("added_tokens")) ReadAddedTokens(*tokens, spec);
  if (const auto normalizer = root.Find("normalizer")) {
    ForSteps(*normalizer, "normalizers",
             [&](const JsonValue& step) { spec.normalizers.push_back(ReadNormalizer(step)); });
  }
  if (const auto splitter = root.Find("pre_tokenizer")) {
    ForSteps(*splitter, "pretokenizers",
             [&](const JsonValue& step) { spec.splitters.push_back(ReadSplitter(step)); });
  }
  if (const auto processor = root.Find("post_processor")) ReadTemplate(*processor, spec);
  return spec;
}

TokenizerSpec ReadTokenizer(const std::filesystem::path& path) {
  return ParseTokenizer(ReadTextFile(path), path.string());
}

}  // namespace equitile

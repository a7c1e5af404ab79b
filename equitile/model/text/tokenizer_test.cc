#include "equitile/model/text/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "equitile/base/error.h"
#include "equitile/io/json_value.h"
#include "equitile/io/records/tokenizer_file.h"
#include "equitile/model/text/text_clean.h"
#include "tests/in_repository.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

const std::filesystem::path kGolden = InRepository("tests/golden");
const std::filesystem::path kTiny = kGolden / "tiny-wan/tokenizer";
const std::filesystem::path kMini = InRepository("models/wan-mini");

using Ids = std::vector<int32_t>;

void CheckGolden(const char* list, TokenizerKind kind) {
  const Json golden = ParseJson(ReadTextFile(kGolden / "text.json"), "text.json");
  const int64_t max_tokens = golden["max_sequence_length"].get<int64_t>();
  const Tokenizer tokenizer = Tokenizer::Open(kTiny, kind);
  ASSERT_GT(golden["prompts"].size(), 20u);
  for (const Json& entry : golden["prompts"]) {
    EXPECT_EQ(tokenizer.Encode(CleanPrompt(entry["prompt"].get<std::string>()), max_tokens),
              entry["ids"][list].get<Ids>())
        << entry["prompt"].dump();
  }
}

TEST(Tokenizer, GoldenIdsOfTokenizerJson) { CheckGolden("tokenizer_json", TokenizerKind::kJson); }
TEST(Tokenizer, GoldenIdsOfTransformers5) {
  CheckGolden("pipeline", TokenizerKind::kTransformers5);
}
TEST(Tokenizer, GoldenIdsOfSentencePiece) {
  CheckGolden("sentencepiece", TokenizerKind::kSentencePiece);
}

// Stored ids of the tokenizers library for text that was not cleaned:
// tests/data/text/make_tokens.py.
TEST(Tokenizer, IdsOfTheReferenceOnAwkwardText) {
  const Json cases =
      ParseJson(ReadTextFile(InRepository("tests/data/text/tokens.json")), "tokens.json");
  ASSERT_GT(cases.size(), 300u);
  const Tokenizer json = Tokenizer::Open(kTiny, TokenizerKind::kJson);
  const Tokenizer transformers5 = Tokenizer::Open(kTiny, TokenizerKind::kTransformers5);
  for (const Json& entry : cases) {
    const std::string text = entry[0].get<std::string>();
    EXPECT_EQ(json.Encode(text, 512), entry[1].get<Ids>()) << entry[0].dump();
    EXPECT_EQ(transformers5.Encode(text, 512), entry[2].get<Ids>()) << entry[0].dump();
  }
}

TEST(Tokenizer, ThreeReadersAgreeOnPlainPrompts) {
  const Tokenizer json = Tokenizer::Open(kMini / "tokenizer", TokenizerKind::kJson);
  const Tokenizer transformers5 =
      Tokenizer::Open(kMini / "tokenizer", TokenizerKind::kTransformers5);
  const Tokenizer pieces = Tokenizer::Open(kMini / "tokenizer", TokenizerKind::kSentencePiece);
  std::ifstream prompts(kMini / "prompts.txt");
  int count = 0;
  for (std::string line; std::getline(prompts, line); ++count) {
    const Ids ids = json.Encode(CleanPrompt(line), 32);
    EXPECT_EQ(ids, transformers5.Encode(CleanPrompt(line), 32)) << line;
    EXPECT_EQ(ids, pieces.Encode(CleanPrompt(line), 32)) << line;
    EXPECT_EQ(ids.back(), 1);
  }
  EXPECT_GT(count, 5);
}

TEST(Tokenizer, SpieceModelWhereThereIsNoTokenizerJson) {
  const TempFolder folder;
  std::filesystem::copy(kTiny / "spiece.model", folder / "spiece.model");
  const Tokenizer tokenizer = Tokenizer::Open(folder / "", TokenizerKind::kJson);
  EXPECT_EQ(tokenizer.source(), (folder / "spiece.model").string());
  EXPECT_EQ(tokenizer.Encode("a red circle", 512),
            Tokenizer::Open(kTiny, TokenizerKind::kJson).Encode("a red circle", 512));
}

TEST(Tokenizer, NeedsRoomForTheEnd) {
  const Tokenizer tokenizer = Tokenizer::Open(kTiny, TokenizerKind::kJson);
  EXPECT_EQ(tokenizer.Encode("a red circle", 2).size(), 2u);
  EXPECT_EQ(tokenizer.Encode("a red circle", 2).back(), 1);
  EXPECT_THROW(tokenizer.Encode("a", 1), InputError);
  EXPECT_THROW(tokenizer.Encode("\xFF", 8), InputError);
}

TEST(Tokenizer, MissingAndMalformedFilesAreInputErrors) {
  const TempFolder folder;
  for (const auto kind :
       {TokenizerKind::kJson, TokenizerKind::kTransformers5, TokenizerKind::kSentencePiece}) {
    EXPECT_THROW(Tokenizer::Open(folder / "", kind), InputError);
  }
  folder.Write("spiece.model", "not a model");
  EXPECT_THROW(Tokenizer::Open(folder / "", TokenizerKind::kSentencePiece), InputError);

  const std::string vocab =
      R"("model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-1]]})";
  const char* const bad[] = {"",
                             "[]",
                             "{",
                             "{}",
                             R"({"model":{}})",
                             R"({"model":{"vocab":[]}})",
                             R"({"model":{"vocab":[["a"]]}})",
                             R"({"model":{"vocab":[["a","b"]]}})",
                             R"({"model":{"vocab":[["a",1]],"unk_id":1}})",
                             R"({"model":{"vocab":[["a",1]],"unk_id":-1}})",
                             R"({"model":{"type":"BPE","vocab":[["a",1]]}})"};
  for (const char* text : bad) EXPECT_THROW(ParseTokenizer(text, "t"), InputError) << text;
  const char* const bad_steps[] = {
      R"("normalizer":{"type":"Lowercase"})",
      R"("normalizer":{"type":"Precompiled"})",
      R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"*"})",
      R"("normalizer":{"type":"Replace","pattern":{"Regex":"a|b"},"content":""})",
      R"("normalizer":{"type":"Replace","pattern":{"String":""},"content":""})",
      R"("normalizer":{"type":"Sequence","normalizers":{}})",
      R"("pre_tokenizer":{"type":"ByteLevel"})",
      R"("pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"?"})",
      R"("added_tokens":[{"id":-1,"content":"x"}])",
      R"("added_tokens":[{"content":"x"}])",
      R"("post_processor":{"type":"Bert"})",
      R"("post_processor":{"type":"TemplateProcessing","single":[]})",
      R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}}],"special_tokens":{}})"};
  for (const char* step : bad_steps) {
    EXPECT_THROW(ParseTokenizer("{" + vocab + "," + step + "}", "t"), InputError) << step;
  }
  // Character maps: no array, an array longer than the blob, replacements that are not UTF-8.
  for (const char* blob : {"", "AAAA", "/////w==", "BAAAAAAAAAD/"}) {
    folder.Write("tokenizer.json",
                 "{" + vocab + R"(,"normalizer":{"type":"Precompiled","precompiled_charsmap":")" +
                     blob + R"("}})");
    EXPECT_THROW(Tokenizer::Open(folder / "", TokenizerKind::kJson), InputError) << blob;
  }
}

// Whatever bytes are wrong: an InputError, or ids; never anything worse.
TEST(Tokenizer, DamagedFilesNeverCrash) {
  const std::string whole = ReadTextFile(kTiny / "tokenizer.json");
  const TempFolder folder;
  std::mt19937 rng(7);
  int survived = 0;
  for (int round = 0; round < 60; ++round) {
    std::string text = whole;
    if (round % 4 == 0) {
      text.resize(rng() % text.size());
    } else {
      for (int i = 0; i < 3; ++i) text[rng() % text.size()] = "059AZaz/+"[rng() % 9];
    }
    folder.Write("tokenizer.json", text);
    try {
      const Tokenizer tokenizer = Tokenizer::Open(folder / "", TokenizerKind::kJson);
      tokenizer.Encode("a \u00BD\u0301 \uFB01sh \u4E00\u53EA <extra_id_3> & \U0001F98A", 64);
      ++survived;
    } catch (const InputError&) {
    }
  }
  EXPECT_GT(survived, 0);
}

}  // namespace
}  // namespace equitile

// Golden text: clean-up, three tokenizers, the encoder.
#include <fmt/format.h>

#include "apps/verify/golden_file.h"
#include "apps/verify/verify_golden.h"
#include "equitile/base/error.h"
#include "equitile/io/json_value.h"
#include "equitile/model/text/text_clean.h"
#include "equitile/model/text/tokenizer.h"
#include "equitile/model/text/umt5.h"

namespace equitile {
namespace {

constexpr GoldenTolerance kEmbeddings{.max = 2e-5, .absolute = true};

std::vector<int64_t> Widened(const auto& ids) { return {ids.begin(), ids.end()}; }

struct Readers {
  const char* name;  // as in text.json
  TokenizerKind kind;
};
constexpr Readers kReaders[] = {{"pipeline", TokenizerKind::kTransformers5},
                                {"tokenizer_json", TokenizerKind::kJson},
                                {"sentencepiece", TokenizerKind::kSentencePiece}};

void VerifyIds(const GoldenRun& run, const JsonValue& text) {
  GoldenReport& report = run.report;
  const int64_t max_tokens = text["max_sequence_length"].Integer(2, 1 << 20);
  const JsonValue prompts = text["prompts"];
  std::vector<Tokenizer> tokenizers;
  for (const auto& [name, kind] : kReaders) {
    tokenizers.push_back(Tokenizer::Open(run.golden.checkpoint.Part("tokenizer"), kind));
  }
  for (int64_t i = 0; i < prompts.Size(); ++i) {
    const JsonValue prompt = prompts.At(i);
    const std::string cleaned = CleanPrompt(prompt["prompt"].Text());
    const std::string label = fmt::format("{:02}.", i);
    report.Equal("text.json", label + "cleaned", Widened(prompt["cleaned"].Text()),
                 Widened(cleaned));
    const JsonValue ids = prompt["ids"];
    for (size_t reader = 0; reader < std::size(kReaders); ++reader) {
      const JsonValue want = ids[kReaders[reader].name];
      report.Equal("text.json", label + "ids." + kReaders[reader].name,
                   Widened(want.Integers(0, INT32_MAX)),
                   Widened(tokenizers[reader].Encode(cleaned, max_tokens)));
    }
  }
}

// "00.ids" and "00.mask" against the ids of text.json's pipeline, as it pads them;
// "00.prompt_embeds" from "00.ids", so that a wrong id is not a wrong encoder too.
void VerifyEmbeddings(const GoldenRun& run, const JsonValue& text) {
  GoldenReport& report = run.report;
  const std::string file = "text.safetensors";
  GoldenFile golden(run.golden.root, file, report);
  const Tokenizer tokenizer =
      Tokenizer::Open(run.golden.checkpoint.Part("tokenizer"), TokenizerKind::kTransformers5);
  const Umt5Encoder encoder(run.golden.checkpoint.Part("text_encoder"));
  const JsonValue prompts = text["prompts"];
  std::vector<std::vector<int32_t>> real;
  for (int64_t i = 0; i < prompts.Size(); ++i) {
    const JsonValue prompt = prompts.At(i);
    const std::string label = fmt::format("{:02}.", i);
    const auto ids = golden.Input(label + "ids").Integers();
    const auto mask = golden.Input(label + "mask").Integers();
    const auto own =
        tokenizer.Encode(CleanPrompt(prompt["prompt"].Text()), static_cast<int64_t>(ids.size()));
    std::vector<int64_t> padded(ids.size()), own_mask(ids.size());
    for (size_t k = 0; k < own.size(); ++k) padded[k] = own[k], own_mask[k] = 1;
    report.Equal(file, label + "ids", ids, padded);
    report.Equal(file, label + "mask", mask, own_mask);
    real.emplace_back();
    for (size_t k = 0; k < ids.size() && k < mask.size() && mask[k] != 0; ++k) {
      real.back().push_back(static_cast<int32_t>(ids[k]));
    }
  }
  const std::vector<Tensor> rows =
      encoder.Encode(real, run.pool, [&](int64_t, int64_t) { run.comm.Poll(); });
  for (size_t i = 0; i < rows.size(); ++i) {
    const StoredTensor& want = golden.Input(fmt::format("{:02}.prompt_embeds", i));
    std::vector<float> got(rows[i].DataAs<float>(), rows[i].DataAs<float>() + rows[i].Elements());
    // Rows beyond the prompt are zeros.
    got.resize(std::max(got.size(), static_cast<size_t>(want.Elements())));
    report.Near(file, want, got, kEmbeddings);
  }
  golden.Finish();
}

}  // namespace

void VerifyGoldenText(const GoldenRun& run) {
  if (run.golden.Files("text.json", "").empty()) {
    return run.report.Fail("text.json", "", "missing");
  }
  const Json document = ParseJson(ReadTextFile(run.golden.root / "text.json"), "text.json");
  const JsonValue text(document, "text.json");
  if (text["prompts"].Size() == 0) run.report.Fail("text.json", "prompts", "nothing to compare");
  VerifyIds(run, text);
  VerifyEmbeddings(run, text);
}

}  // namespace equitile

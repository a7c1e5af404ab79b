// spiece.model through the SentencePiece library. The only file that sees it.
#include <sentencepiece_processor.h>

#include "equitile/base/error.h"
#include "equitile/io/mapped_file.h"
#include "equitile/model/text/tokenizer.h"

namespace equitile {
namespace {

class SentencePieceReader : public Tokenizer::Reader {
 public:
  explicit SentencePieceReader(const std::filesystem::path& path) {
    const MappedFile file(path);
    const auto bytes = file.bytes();
    const auto status = processor_.LoadFromSerializedProto(
        {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    if (!status.ok()) {
      throw InputError("[model] {}: not a SentencePiece model: {}", path.string(),
                       status.ToString());
    }
    if (processor_.eos_id() < 0) {
      throw InputError("[model] {}: has no piece that ends a text (</s>)", path.string());
    }
    ids_after = {processor_.eos_id()};
  }

  std::vector<int32_t> Pieces(std::string_view text) const override {
    std::vector<int> ids;
    const auto status = processor_.Encode({text.data(), text.size()}, &ids);
    if (!status.ok()) throw InputError("[model] prompt: {}", status.ToString());
    return {ids.begin(), ids.end()};
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer::Reader> OpenSentencePiece(const std::filesystem::path& path) {
  return std::make_unique<SentencePieceReader>(path);
}

}  // namespace equitile

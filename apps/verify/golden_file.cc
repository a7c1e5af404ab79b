#include "apps/verify/golden_file.h"

#include <utility>

namespace equitile {

GoldenFile::GoldenFile(const std::filesystem::path& root, std::string name, GoldenReport& report)
    : name_(std::move(name)), tensors_(TensorFiles::OpenFile(root / name_)), report_(report) {}

const StoredTensor& GoldenFile::Input(const std::string& tensor) {
  read_.insert(tensor);
  return tensors_[tensor];
}

const StoredTensor* GoldenFile::Expect(const std::string& tensor) {
  read_.insert(tensor);
  const StoredTensor* found = tensors_.Find(tensor);
  if (found == nullptr) report_.Fail(name_, tensor, "missing");
  return found;
}

void GoldenFile::Near(const std::string& tensor, std::span<const float> got,
                      const GoldenTolerance& tolerance) {
  if (const StoredTensor* want = Expect(tensor)) report_.Near(name_, *want, got, tolerance);
}

void GoldenFile::Equal(const std::string& tensor, std::span<const float> got) {
  if (const StoredTensor* want = Expect(tensor)) report_.Equal(name_, *want, got);
}

void GoldenFile::Levels(const std::string& tensor, std::span<const uint8_t> got, double share) {
  if (const StoredTensor* want = Expect(tensor)) report_.Levels(name_, *want, got, share);
}

void GoldenFile::Finish() {
  for (const StoredTensor& tensor : tensors_.tensors()) {
    if (!read_.contains(tensor.name)) report_.Skip(name_, tensor.name);
  }
  if (report_.ChecksOf(name_) == 0) report_.Fail(name_, "", "nothing to compare");
}

}  // namespace equitile

// A golden file that knows what has been read of it: a tensor that a comparison asks for and that
// is not there is a failure, and one that nobody asked for is listed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>

#include "apps/verify/golden_report.h"
#include "equitile/io/arrays/safetensors.h"

namespace equitile {

class GoldenFile {
 public:
  // Throws InputError where the file cannot be read. The report must outlive it.
  GoldenFile(const std::filesystem::path& root, std::string name, GoldenReport& report);

  const std::string& name() const { return name_; }
  const TensorFiles& tensors() const { return tensors_; }
  bool Has(const std::string& tensor) const { return tensors_.Find(tensor) != nullptr; }

  // What a computation starts from. Throws InputError where it is absent.
  const StoredTensor& Input(const std::string& tensor);

  // GoldenReport's comparisons.
  void Near(const std::string& tensor, std::span<const float> got,
            const GoldenTolerance& tolerance);
  void Equal(const std::string& tensor, std::span<const float> got);
  void Levels(const std::string& tensor, std::span<const uint8_t> got, double share);

  // After the last comparison: lists what was not read; a failure where nothing was compared.
  void Finish();

 private:
  const StoredTensor* Expect(const std::string& tensor);  // nullptr, and a failure, if absent

  const std::string name_;
  const TensorFiles tensors_;
  GoldenReport& report_;
  std::set<std::string> read_;
};

}  // namespace equitile

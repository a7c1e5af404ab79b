// What comparing with golden files finds: every comparison is kept, per file the worst is shown.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/cli/table.h"
#include "apps/cli/terminal.h"
#include "equitile/base/hash.h"
#include "equitile/io/arrays/stored_tensor.h"

namespace equitile {

// How far a tensor may be from the golden one. Tolerances are those of tests/golden/README.md.
struct GoldenTolerance {
  double max = 0;  // of max |a - b|, over the rms of the golden tensor unless `absolute`
  bool absolute = false;
  double l2 = 0;  // of |a - b| / |b|, besides; 0: not looked at
};

struct GoldenCheck {
  std::string file, tensor;
  double error = 0, tolerance = 0;
  std::vector<int64_t> at;  // coordinates of the worst element
  std::string note;         // where no number says it: other sizes, a missing tensor
  bool ok = true;

  // Above 1: failed. Orders the checks of a file.
  double Severity() const;
};

class GoldenReport {
 public:
  // All of the following compare what we computed with what a file holds.
  void Near(const std::string& file, const StoredTensor& want, std::span<const float> got,
            const GoldenTolerance& tolerance);
  // Equal numbers; floats or integers in the file.
  void Equal(const std::string& file, const StoredTensor& want, std::span<const float> got);
  // The error is the number of places that differ.
  void Equal(const std::string& file, const std::string& name, std::span<const int64_t> want,
             std::span<const int64_t> got);
  // Pictures in levels 0 to 255: one level off for at most this share of the values, or for a
  // single one, which in a tiny picture is more than that.
  void Levels(const std::string& file, const StoredTensor& want, std::span<const uint8_t> got,
              double share);
  void Fail(const std::string& file, const std::string& tensor, const std::string& why);
  // A tensor that is not compared.
  void Skip(const std::string& file, const std::string& tensor);

  bool Ok() const;
  size_t Checks() const { return checks_.size(); }
  int64_t ChecksOf(const std::string& file) const;
  // Of everything that was computed: equal for runs that gave equal bits.
  uint64_t Digest() const { return hasher_.Digest(); }

  std::string ToText(const Terminal& terminal) const;
  Json ToJson() const;  // {"ok", "files": [{"file", "tensor", "error", "tolerance", "at", "ok"}]}

 private:
  void Add(GoldenCheck check) { checks_.push_back(std::move(check)); }
  // Per file the worst check, then the others that failed.
  std::vector<const GoldenCheck*> Shown() const;

  std::vector<GoldenCheck> checks_;
  std::vector<GoldenCheck> skipped_;
  Hasher hasher_;
};

}  // namespace equitile

// Masks from files: which of them is for which step and layer. What no file covers is an error that
// is known before anything runs, never silently everything.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "equitile/io/records/mask_file.h"
#include "equitile/sparsity/source/mask_source.h"

namespace equitile {

// One mask file, or all .npy files of a folder.
class MaskTable {
 public:
  // Throws InputError: no such file, a folder without masks, masks of different lanes or tokens,
  // two files for the same step and layer.
  static MaskTable Read(const std::filesystem::path& path);
  // The same of files that were read already; `names` are for messages.
  MaskTable(std::vector<MaskFile> files, std::vector<std::string> names);

  // A mask of one batch item repeated (WithBatch).
  MaskTable ForBatch(int64_t batch) const;

  // What needs no mask: steps of `skippable`, none of which a run that skips steps writes, and the
  // first layers.
  struct MayLack {
    Range skippable;
    int64_t dense_layers = 0;
  };
  // Throws InputError that names the first step and layer without a mask.
  void CheckCovers(Range steps, int64_t layers, const MayLack& lacks) const;
  bool HasStep(int64_t step) const;  // a mask for any of its layers
  // From the first step on, those that have masks of their own, all of them dense.
  int64_t DenseSteps() const;

  // Throws InputError where there is none: this run computes what another one skipped.
  const LaneMasks& At(int64_t step, int64_t layer) const;
  // All masks, by step and then layer.
  struct Place {
    std::optional<int64_t> step, layer;  // nothing: every one
    const LaneMasks* masks = nullptr;
  };
  std::vector<Place> Places() const;

  const LaneMasks& First() const { return entries_.front().masks; }
  const std::optional<TokenGrid>& grid() const { return files_.front().grid; }
  const std::string& method() const { return files_.front().method; }
  uint64_t hash() const;  // of all masks and what they are for
  int64_t Bytes() const;

 private:
  struct Entry {
    std::optional<int64_t> step, layer;  // nothing: every one
    LaneMasks masks;
    size_t file = 0;
  };
  void Add(size_t file);
  const Entry* Find(int64_t step, int64_t layer) const;
  std::string Name() const;  // of the file or folder

  std::vector<MaskFile> files_;
  std::vector<std::string> names_;
  std::vector<Entry> entries_;
};

class FileMasks final : public MaskSource {
 public:
  explicit FileMasks(MaskTable table) : table_(std::move(table)) {}
  LaneMasks MaskFor(const SelfAttentionCall& call) override {
    return table_.At(call.step, call.layer);
  }
  std::vector<int64_t> SkippedHeads(const ComingLayer& layer) override {
    return equitile::SkippedHeads(table_.At(layer.step, layer.layer));
  }
  int64_t Bytes() const override { return table_.Bytes(); }

 private:
  MaskTable table_;
};

}  // namespace equitile

#include "equitile/sparsity/files/file_masks.h"

#include <algorithm>
#include <tuple>

#include "equitile/base/error.h"
#include "equitile/base/hash.h"
#include "equitile/pattern/mask_hash.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> MasksIn(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".npy") paths.push_back(entry.path());
  }
  if (paths.empty()) throw InputError("[sparsity] {}: no .npy in this folder", folder.string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

bool Meet(const std::optional<int64_t>& a, const std::optional<int64_t>& b) {
  return !a || !b || *a == *b;
}

std::string PlaceText(const std::optional<int64_t>& step, const std::optional<int64_t>& layer) {
  return fmt::format("step {}, layer {}", step ? fmt::format("{}", *step) : "any",
                     layer ? fmt::format("{}", *layer) : "any");
}

}  // namespace

MaskTable MaskTable::Read(const fs::path& path) {
  std::error_code ignored;
  const std::vector<fs::path> paths =
      fs::is_directory(path, ignored) ? MasksIn(path) : std::vector<fs::path>{path};
  std::vector<MaskFile> files;
  std::vector<std::string> names;
  for (const fs::path& file : paths) {
    files.push_back(ReadMaskFile(file));
    names.push_back(file.string());
  }
  return MaskTable(std::move(files), std::move(names));
}

MaskTable::MaskTable(std::vector<MaskFile> files, std::vector<std::string> names)
    : files_(std::move(files)), names_(std::move(names)) {
  EQ_CHECK(!files_.empty() && files_.size() == names_.size());
  for (size_t file = 0; file < files_.size(); ++file) Add(file);
}

void MaskTable::Add(size_t file) {
  const MaskFile& masks = files_[file];
  const BlockMask &first = files_.front().layers.front(), &here = masks.layers.front();
  if (here.lanes() != first.lanes() || here.grid() != first.grid() ||
      masks.grid != files_.front().grid) {
    throw InputError("[sparsity] {}: other heads, tokens, blocks or grid than {}", names_[file],
                     names_.front());
  }
  const int64_t steps = std::max<int64_t>(masks.steps, 1);
  const int64_t layers = std::ssize(masks.layers) / steps;
  for (int64_t i = 0; i < std::ssize(masks.layers); ++i) {
    Entry entry{.step = masks.step,
                .layer = masks.layer,
                .masks = masks.MasksOf(static_cast<size_t>(i)),
                .file = file};
    if (masks.steps > 0) entry.step = masks.step.value_or(0) + i / layers;
    if (masks.has_layer_axis) entry.layer = masks.layer.value_or(0) + i % layers;
    for (const Entry& other : entries_) {
      if (!Meet(other.step, entry.step) || !Meet(other.layer, entry.layer)) continue;
      throw InputError("[sparsity] {}: its mask for {} is also that of {}", names_[file],
                       PlaceText(entry.step, entry.layer), names_[other.file]);
    }
    entries_.push_back(std::move(entry));
  }
}

MaskTable MaskTable::ForBatch(int64_t batch) const {
  std::vector<MaskFile> files;
  for (const MaskFile& file : files_) files.push_back(WithBatch(file, batch));
  return MaskTable(std::move(files), names_);
}

const MaskTable::Entry* MaskTable::Find(int64_t step, int64_t layer) const {
  const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) {
    return Meet(e.step, step) && Meet(e.layer, layer);
  });
  return entry == entries_.end() ? nullptr : &*entry;
}

std::string MaskTable::Name() const {
  const fs::path first = names_.front();
  return files_.size() == 1 ? first.string() : first.parent_path().string();
}

bool MaskTable::HasStep(int64_t step) const {
  return std::ranges::any_of(entries_, [&](const Entry& e) { return Meet(e.step, step); });
}

int64_t MaskTable::DenseSteps() const {
  for (int64_t step = 0;; ++step) {
    bool is_there = false;
    for (const Entry& entry : entries_) {
      if (entry.step != step) continue;
      if (entry.masks.blocks().Density() < 1) return step;
      is_there = true;
    }
    if (!is_there) return step;
  }
}

void MaskTable::CheckCovers(Range steps, int64_t layers, const MayLack& lacks) const {
  for (const Entry& entry : entries_) {
    if (entry.layer.value_or(0) < layers) continue;
    throw InputError("[sparsity] {}: a mask for layer {}; the model has {} layers, counted from 0",
                     names_[entry.file], *entry.layer, layers);
  }
  for (int64_t step = steps.begin; step < steps.end; ++step) {
    if (lacks.skippable.Contains(step) && !HasStep(step)) continue;
    for (int64_t layer = lacks.dense_layers; layer < layers; ++layer) {
      if (Find(step, layer) != nullptr) continue;
      throw InputError(
          "[sparsity] {}: no mask for step {}, layer {} (counted from 0); every layer of every "
          "step that is neither dense nor skipped by --cache needs one",
          Name(), step, layer);
    }
  }
}

const LaneMasks& MaskTable::At(int64_t step, int64_t layer) const {
  const Entry* entry = Find(step, layer);
  if (entry == nullptr) {
    throw InputError(
        "[sparsity] {}: no mask for step {}, layer {} (counted from 0), which this run computes; "
        "--cache must be what it was when they were written",
        Name(), step, layer);
  }
  return entry->masks;
}

std::vector<MaskTable::Place> MaskTable::Places() const {
  std::vector<Place> places;
  for (const Entry& entry : entries_)
    places.push_back({.step = entry.step, .layer = entry.layer, .masks = &entry.masks});
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::tie(a.step, a.layer) < std::tie(b.step, b.layer);
  });
  return places;
}

uint64_t MaskTable::hash() const {
  // Sidecars of version 0.1.0 hold hashes of blocks and orders alone: what else there is comes
  // after.
  Hasher hash;
  for (const MaskFile& file : files_) {
    for (const BlockMask& layer : file.layers) hash.Add(HashMask(layer));
    for (TokenOrder order : file.orders) hash.Add(order);
    for (Tail tail : file.tails) hash.Add(tail);
    if (file.steps > 0) hash.Add(file.steps);
    if (file.step || file.layer) hash.Add(file.step.value_or(-1)).Add(file.layer.value_or(-1));
  }
  return hash.Digest();
}

int64_t MaskTable::Bytes() const {
  int64_t bytes = 0;
  for (const Entry& entry : entries_) bytes += entry.masks.Bytes();
  return bytes;
}

}  // namespace equitile

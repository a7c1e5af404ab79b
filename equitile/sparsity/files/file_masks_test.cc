#include "equitile/sparsity/files/file_masks.h"

#include <gtest/gtest.h>

#include "equitile/base/error.h"
#include "tests/refusal.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

constexpr Lanes kLanes{.batch = 1, .heads = 2};
const BlockGrid kBlocks{.q_tokens = 100, .kv_tokens = 100, .block_tokens = 32};

// Keeps one block, so that masks can be told apart.
BlockMask Mask(int64_t which) {
  BlockMask mask(kLanes, kBlocks);
  mask.Set(0, which / 4, which % 4);
  return mask;
}

MaskFile File(std::vector<BlockMask> layers, int64_t steps = 0) {
  MaskFile file;
  file.has_layer_axis = layers.size() > 1 || steps > 0;
  file.layers = std::move(layers);
  file.steps = steps;
  file.orders.assign(2, TokenOrder::kFHW);
  return file;
}

int64_t Which(const MaskTable& table, int64_t step, int64_t layer) {
  const BlockMask& mask = table.At(step, layer).blocks();
  for (int64_t which = 0; which < 16; ++which) {
    if (mask == Mask(which)) return which;
  }
  return -1;
}

std::string Complaint(const MaskTable& table, Range steps, int64_t layers) {
  try {
    table.CheckCovers(steps, layers, {});
    return "covered";
  } catch (const InputError& error) {
    return error.what();
  }
}

TEST(MaskTable, OneMaskIsForEverything) {
  const MaskTable table({File({Mask(3)})}, {"m.npy"});
  EXPECT_EQ(Complaint(table, {0, 9}, 5), "covered");
  EXPECT_EQ(Which(table, 8, 4), 3);
}

TEST(MaskTable, AMaskForOneLayerIsForThatLayerOnly) {
  MaskFile file = File({Mask(3)});
  file.layer = 1;
  const MaskTable table({file}, {"m.npy"});
  EXPECT_NE(Complaint(table, {0, 2}, 3).find("no mask for step 0, layer 0"), std::string::npos);
  EXPECT_NE(Complaint(table, {0, 2}, 1).find("a mask for layer 1; the model has 1"),
            std::string::npos);
}

TEST(MaskTable, OnlyWholeStepsMayBeMissingAndOnlyWhereStepsAreSkipped) {
  std::vector<MaskFile> files;
  std::vector<std::string> names;
  for (const auto& [step, layer] : {std::pair{0, 0}, {0, 1}, {1, 0}, {1, 1}, {3, 0}}) {
    files.push_back(File({step == 0 ? BlockMask::Dense(kLanes, kBlocks) : Mask(step)}));
    files.back().step = step;
    files.back().layer = layer;
    names.push_back("m/x.npy");
  }
  const auto complaint = [&](Range skippable) {
    const MaskTable table(files, names);
    return Refusal([&] { table.CheckCovers({0, 4}, 2, {.skippable = skippable}); });
  };
  EXPECT_NE(complaint({}).find("m: no mask for step 2, layer 0"), std::string::npos);
  EXPECT_NE(complaint({0, 4}).find("m: no mask for step 3, layer 1"), std::string::npos);
  files.push_back(files.back());
  files.back().layer = 1;
  names.push_back("m/x.npy");
  EXPECT_EQ(complaint({2, 3}), "");
  EXPECT_NE(complaint({3, 4}).find("step 2"), std::string::npos);
  const MaskTable table(files, names);
  EXPECT_EQ(table.DenseSteps(), 1);
  EXPECT_TRUE(table.HasStep(3));
  EXPECT_FALSE(table.HasStep(2));
  EXPECT_NE(Refusal([&] { table.At(2, 1); }).find("step 2, layer 1"), std::string::npos);
  EXPECT_EQ(MaskTable({File({BlockMask::Dense(kLanes, kBlocks)})}, {"m"}).DenseSteps(), 0);
}

TEST(MaskTable, DenseLayersNeedNoMasks) {
  MaskFile file = File({Mask(0)});
  file.layer = 1;
  const MaskTable table({file}, {"m.npy"});
  EXPECT_NE(Refusal([&] { table.CheckCovers({0, 3}, 2, {}); }).find("step 0, layer 0"),
            std::string::npos);
  EXPECT_EQ(Refusal([&] { table.CheckCovers({0, 3}, 2, {.dense_layers = 1}); }), "");
}

TEST(MaskTable, AxesCountFromTheGivenStepAndLayer) {
  std::vector<BlockMask> masks;
  for (int64_t i = 0; i < 6; ++i) masks.push_back(Mask(i));
  MaskFile file = File(masks, 3);  // [3 steps][2 layers]
  file.step = 4;
  const MaskTable table({file}, {"m.npy"});
  EXPECT_EQ(Complaint(table, {4, 7}, 2), "covered");
  EXPECT_EQ(Which(table, 4, 0), 0);
  EXPECT_EQ(Which(table, 5, 1), 3);
  EXPECT_EQ(Which(table, 6, 1), 5);
  EXPECT_NE(Complaint(table, {3, 7}, 2).find("step 3"), std::string::npos);
  EXPECT_NE(Complaint(table, {4, 8}, 2).find("step 7"), std::string::npos);
  EXPECT_NE(Complaint(table, {4, 7}, 3).find("layer 2"), std::string::npos);
}

TEST(MaskTable, ReadsFoldersOfFilesForLayersAndSteps) {
  const TempFolder folder;
  for (int64_t layer = 0; layer < 2; ++layer) {
    for (int64_t step = 0; step < 2; ++step) {
      MaskFile file = File({Mask(4 * step + layer)});
      file.layer = layer;
      file.step = step;
      WriteMaskFile(folder / fmt::format("s{}l{}.npy", step, layer), file);
    }
  }
  const MaskTable table = MaskTable::Read(folder / "");
  EXPECT_EQ(Complaint(table, {0, 2}, 2), "covered");
  EXPECT_EQ(Which(table, 1, 0), 4);
  EXPECT_EQ(Which(table, 1, 1), 5);
  const MaskTable both = table.ForBatch(2);
  EXPECT_EQ(both.First().blocks().lanes().batch, 2);
  EXPECT_NE(both.hash(), table.hash());
}

TEST(MaskTable, RefusesFilesThatMeetOrDoNotFitTogether) {
  MaskFile one = File({Mask(0)}), other = File({Mask(1)});
  one.layer = 2;
  EXPECT_THROW(MaskTable({one, other}, {"a.npy", "b.npy"}), InputError);
  other.layer = 3;
  EXPECT_NO_THROW(MaskTable({one, other}, {"a.npy", "b.npy"}));
  other.step = 1;
  one.layer = 3;
  EXPECT_THROW(MaskTable({one, other}, {"a.npy", "b.npy"}), InputError);
  MaskFile wide = File({BlockMask({.batch = 1, .heads = 3}, kBlocks)});
  wide.layer = 0;
  EXPECT_THROW(MaskTable({one, wide}, {"a.npy", "b.npy"}), InputError);
  const TempFolder empty;
  EXPECT_THROW(MaskTable::Read(empty / ""), InputError);
  EXPECT_THROW(MaskTable::Read(empty / "none.npy"), InputError);
}

TEST(MaskTable, HashKnowsWhatMasksAreFor) {
  MaskFile file = File({Mask(0)});
  const uint64_t any = MaskTable({file}, {""}).hash();
  file.layer = 0;
  const uint64_t first = MaskTable({file}, {""}).hash();
  file.tails = {Tail::kMean, Tail::kNone};
  EXPECT_NE(any, first);
  EXPECT_NE(MaskTable({file}, {""}).hash(), first);
}

}  // namespace
}  // namespace equitile

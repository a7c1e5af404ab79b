#include "equitile/io/records/mask_file.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "equitile/base/error.h"
#include "equitile/io/arrays/npy.h"
#include "tests/in_repository.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

// The array of a mask; element i is 1 where i is a multiple of 3.
void WriteArray(const std::filesystem::path& path, const std::vector<int64_t>& shape,
                NpyType type = NpyType::kUint8) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  std::vector<std::byte> data(static_cast<size_t>(count * NpyTypeBytes(type)));
  for (size_t i = 0; i < data.size(); i += 3) data[i] = std::byte{1};
  WriteNpy(path, type, shape, data);
}

// The complaint about [4, 5, 6] blocks with this description, or "accepted".
std::string Complaint(const std::string& json) {
  const TempFolder folder;
  WriteArray(folder / "m.npy", {4, 5, 6});
  folder.Write("m.json", json);
  try {
    ReadMaskFile(folder / "m.npy");
    return "accepted";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("m.json"), std::string::npos) << error.what();
    return error.what();
  }
}

TEST(MaskFile, DefaultsWithoutDescription) {
  const TempFolder folder;
  WriteArray(folder / "m.npy", {4, 5, 70});
  const MaskFile mask = ReadMaskFile(folder / "m.npy");
  ASSERT_EQ(mask.layers.size(), 1U);
  EXPECT_FALSE(mask.has_layer_axis);
  EXPECT_EQ(mask.lanes(), (Lanes{.batch = 1, .heads = 4}));
  EXPECT_EQ(mask.layers[0].grid(),
            (BlockGrid{.q_tokens = 320, .kv_tokens = 4480, .block_tokens = 64}));
  EXPECT_EQ(mask.orders, std::vector<TokenOrder>(4, TokenOrder::kFHW));
  EXPECT_FALSE(mask.grid || mask.layer || mask.step);
  for (int64_t lane = 0, i = 0; lane < 4; ++lane) {
    for (int64_t q = 0; q < 5; ++q) {
      for (int64_t kv = 0; kv < 70; ++kv, ++i)
        EXPECT_EQ(mask.layers[0].Get(lane, q, kv), i % 3 == 0);
    }
  }
}

TEST(MaskFile, DescriptionFillsEverything) {
  const TempFolder folder;
  WriteArray(folder / "m.npy", {2, 4, 5, 5});
  folder.Write(
      "m.json",
      R"({"version": 1, "batch": 2, "heads": 2, "block": 16, "q_tokens": 67, "kv_tokens": 67,
                             "grid": [3, 4, 5], "text": {"before": 0, "after": 7}, "orders": ["fhw", "hwf", "fhw", "wfh"],
                             "layer": 12, "step": 0})");
  const MaskFile mask = ReadMaskFile(folder / "m.npy");
  EXPECT_EQ(mask.layers.size(), 2U);
  EXPECT_EQ(mask.lanes(), (Lanes{.batch = 2, .heads = 2}));
  EXPECT_EQ(mask.layers[1].grid(),
            (BlockGrid{.q_tokens = 67, .kv_tokens = 67, .block_tokens = 16}));
  EXPECT_EQ(mask.grid, (TokenGrid{.frames = 3, .height = 4, .width = 5, .text_after = 7}));
  EXPECT_EQ(mask.orders[3], TokenOrder::kWFH);
  EXPECT_EQ(mask.layer, 12);
  EXPECT_EQ(mask.step, 0);
}

TEST(MaskFile, LanesAreInHomeOrderUnlessTheirsIsNamed) {
  const TempFolder folder;
  WriteArray(folder / "m.npy", {2, 4, 4});
  folder.Write("m.json", R"({"block": 16, "grid": [4, 4, 4], "home_order": "hilbert"})");
  MaskFile mask = ReadMaskFile(folder / "m.npy");
  EXPECT_EQ(mask.home(), TokenOrder::kHilbert);
  EXPECT_EQ(mask.orders, std::vector<TokenOrder>(2, TokenOrder::kHilbert));
  EXPECT_TRUE(mask.MasksOf(0).orders().empty());
  folder.Write("m.json", R"({"block": 16, "grid": [4, 4, 4], "home_order": "hilbert",
                             "orders": ["tiles:2x2x4", "hilbert"]})");
  mask = ReadMaskFile(folder / "m.npy");
  EXPECT_EQ(mask.orders[0], TokenOrder::Tiles(2, 2, 4));
  EXPECT_EQ(mask.MasksOf(0).token_grid().home, TokenOrder::kHilbert);
  EXPECT_NE(Complaint(R"({"home_order": "hilbert"})").find("needs 'grid' too"), std::string::npos);
  EXPECT_NE(Complaint(R"({"grid": [5, 8, 8], "home_order": "tiles:4"})").find("tiles:FxHxW"),
            std::string::npos);
}

TEST(MaskFile, MasksOfARunReadBack) {
  const TempFolder folder;
  const TokenGrid grid{.frames = 3, .height = 5, .width = 7, .home = TokenOrder::kHilbert};
  BlockMask blocks({.batch = 2, .heads = 2},
                   {.q_tokens = 105, .kv_tokens = 105, .block_tokens = 32});
  for (int64_t lane = 0; lane < 4; ++lane) blocks.Set(lane, lane % 3, 3 - lane);
  const LaneMasks plain(
      {.blocks = blocks, .token_grid = grid, .orders = {}, .tails = {}});  // in home order
  const LaneMasks full(
      {.blocks = blocks,
       .token_grid = grid,
       .orders = {TokenOrder::kHilbert, TokenOrder::kHWF, TokenOrder::kFHW, TokenOrder::kHilbert},
       .tails = {Tail::kMean, Tail::kNone, Tail::kMean, Tail::kMean}});
  for (const LaneMasks& masks : {plain, full}) {
    WriteMaskFile(folder / "m.npy", MaskFileOf(masks, grid, 4, 7));
    const MaskFile read = ReadMaskFile(folder / "m.npy");
    EXPECT_EQ(read.MasksOf(0), masks);
    EXPECT_EQ(read.step, 4);
    EXPECT_EQ(read.layer, 7);
    EXPECT_EQ(read.home(), TokenOrder::kHilbert);
  }
  const std::vector<float> masses(64, 0.25f);
  WriteMassFile(folder / "w.npy", MaskFileOf(full, grid, 4, 7), masses);
  const NpyArray array = ReadNpy(folder / "w.npy");
  EXPECT_EQ(array.type, NpyType::kFloat32);
  EXPECT_EQ(array.shape, (std::vector<int64_t>{4, 4, 4}));
  EXPECT_THROW(ReadMaskFile(folder / "w.npy"), InputError);  // not a mask
}

TEST(MaskFile, DescriptionMayLeaveThingsOut) {
  EXPECT_EQ(Complaint("{}"), "accepted");
  EXPECT_EQ(Complaint(R"({"heads": 2})"), "accepted");
  EXPECT_EQ(Complaint(R"({"batch": 4})"), "accepted");
  EXPECT_EQ(Complaint(R"({"q_tokens": 257, "kv_tokens": 384, "layer": null})"), "accepted");
  EXPECT_EQ(Complaint(R"({"grid": [5, 8, 8], "kv_tokens": 321})"), "accepted");  // cross-attention
}

TEST(MaskFile, DescriptionMustFitTheArray) {
  for (const char* json : {"",
                           "[]",
                           "3",
                           "{",
                           R"({"heads": 3})",
                           R"({"batch": 3})",
                           R"({"batch": 8})",
                           R"({"batch": 2, "heads": 4})",
                           R"({"batch": 0})",
                           R"({"batch": -2})",
                           R"({"batch": 2.0})",
                           R"({"batch": "2"})",
                           R"({"batch": 18446744073709551615})",
                           R"({"block": 60})",
                           R"({"block": 8})",
                           R"({"block": 0})",
                           R"({"block": 512})",
                           R"({"q_tokens": 256})",
                           R"({"q_tokens": 321})",
                           R"({"kv_tokens": 385})",
                           R"({"q_tokens": 0})",
                           R"({"version": 2})",
                           R"({"version": "1"})",
                           R"({"blcok": 64})",
                           R"({"text": {"after": 1}})",
                           R"({"grid": [5, 64]})",
                           R"({"grid": [1, 2, 3]})",
                           R"({"grid": [0, 8, 8]})",
                           R"({"grid": [2147483647, 2147483647, 2147483647]})",
                           R"({"grid": [5, 8, 8], "text": {"befor": 1}})",
                           R"({"grid": [5, 8, 8], "text": 3})",
                           R"({"orders": "hwf"})",
                           R"({"orders": "abc"})",
                           R"({"orders": ["fhw"]})",
                           R"({"orders": [1, 2, 3, 4]})",
                           R"({"grid": [5, 8, 8], "kv_tokens": 321, "orders": "hwf"})",
                           R"({"layer": -1})",
                           R"({"step": 1.5})"}) {
    EXPECT_NE(Complaint(json), "accepted") << json;
  }
}

TEST(MaskFile, ArrayMustBeAMask) {
  const TempFolder folder;
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {}, {8}, {4, 4}, {1, 2, 3, 4, 5, 6}, {4, 0, 4}, {0, 4, 4, 4}}) {
    WriteArray(folder / "m.npy", shape);
    EXPECT_THROW(ReadMaskFile(folder / "m.npy"), InputError);
  }
  WriteArray(folder / "m.npy", {4, 4, 4}, NpyType::kFloat32);
  EXPECT_THROW(ReadMaskFile(folder / "m.npy"), InputError);
  EXPECT_THROW(ReadMaskFile(folder / "missing.npy"), InputError);
}

TEST(MaskFile, ElementsAreZeroOrOneWhereverTheyLie) {
  const TempFolder folder;
  for (int64_t kv : {1, 7, 8, 9, 63, 64, 65, 130}) {
    const std::vector<std::byte> ones(static_cast<size_t>(kv), std::byte{1});
    WriteNpy(folder / "m.npy", NpyType::kUint8, std::vector<int64_t>{1, 1, kv}, ones);
    const std::string good = folder.Read("m.npy");
    for (int64_t at = 0; at < kv; ++at) {
      std::string bad = good;
      bad[bad.size() - static_cast<size_t>(kv - at)] = 2;
      folder.Write("m.npy", bad);
      EXPECT_THROW(ReadMaskFile(folder / "m.npy"), InputError) << kv << " " << at;
    }
  }
}

TEST(MaskFile, WholeNumbersAreReadAsBytesAre) {
  const TempFolder folder;
  std::vector<int64_t> values(2 * 3 * 70);
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = i % 3 == 0 ? 1 : 0;
    bytes.push_back(static_cast<std::byte>(values[i]));
  }
  const std::vector<int64_t> shape = {2, 3, 70};
  const auto write = [&] {
    WriteNpy(folder / "wide.npy", NpyType::kInt64, shape, std::as_bytes(std::span(values)));
  };
  write();
  WriteNpy(folder / "m.npy", NpyType::kUint8, shape, bytes);
  EXPECT_EQ(ReadMaskFile(folder / "wide.npy").layers, ReadMaskFile(folder / "m.npy").layers);
  for (int64_t bad : {int64_t{-1}, int64_t{2}, int64_t{256}, int64_t{1} << 32}) {
    values[77] = bad;
    write();
    EXPECT_THROW(ReadMaskFile(folder / "wide.npy"), InputError) << bad;
  }
}

TEST(MaskFile, BatchOfOneRepeats) {
  const TempFolder folder;
  WriteArray(folder / "m.npy", {3, 5, 5});
  folder.Write("m.json", R"({"grid": [5, 8, 8], "orders": ["fhw", "hwf", "wfh"]})");
  const MaskFile one = ReadMaskFile(folder / "m.npy");
  const MaskFile two = WithBatch(one, 2);
  EXPECT_EQ(two.lanes(), (Lanes{.batch = 2, .heads = 3}));
  for (int64_t lane = 0; lane < 6; ++lane) {
    EXPECT_EQ(two.orders[static_cast<size_t>(lane)], one.orders[static_cast<size_t>(lane % 3)]);
    for (int64_t q = 0; q < 5; ++q) {
      EXPECT_EQ(two.layers[0].KeptInRow(lane, q), one.layers[0].KeptInRow(lane % 3, q));
    }
  }
  EXPECT_EQ(WithBatch(two, 2).layers, two.layers);
  EXPECT_THROW(WithBatch(two, 4), InputError);
  EXPECT_THROW(WithBatch(one, 0), InputError);
}

RC_GTEST_PROP(MaskFile, ReadsBackWhatItWrote, ()) {
  const std::vector<TokenOrder> kOrders = {TokenOrder::kFHW, TokenOrder::kHWF, TokenOrder::kWFH,
                                           TokenOrder::kHilbert, TokenOrder::Tiles(2, 3, 65535)};
  const TempFolder folder;
  MaskFile mask;
  const Lanes lanes{.batch = *rc::gen::inRange(1, 3), .heads = *rc::gen::inRange(1, 6)};
  const TokenGrid tokens{.frames = *rc::gen::inRange(1, 6),
                         .height = *rc::gen::inRange(1, 12),
                         .width = *rc::gen::inRange(1, 30),
                         .text_before = *rc::gen::inRange(0, 20),
                         .text_after = *rc::gen::inRange(0, 20)};
  const BlockGrid grid{.q_tokens = tokens.Tokens(),
                       .kv_tokens = tokens.Tokens(),
                       .block_tokens = 16 * *rc::gen::inRange<int64_t>(1, 17)};
  if (*rc::gen::arbitrary<bool>()) mask.grid = tokens;
  if (mask.grid) mask.grid->home = *rc::gen::elementOf(kOrders);
  mask.has_layer_axis = *rc::gen::arbitrary<bool>();
  for (int64_t lane = 0; lane < lanes.Count(); ++lane) {
    mask.orders.push_back(mask.grid ? *rc::gen::elementOf(kOrders) : TokenOrder::kFHW);
  }
  if (*rc::gen::arbitrary<bool>()) mask.layer = *rc::gen::inRange(0, 40);
  if (*rc::gen::arbitrary<bool>()) mask.step = *rc::gen::inRange(0, 50);
  const int layers = mask.has_layer_axis ? *rc::gen::inRange(1, 4) : 1;
  for (int layer = 0; layer < layers; ++layer) {
    BlockMask blocks(lanes, grid);
    const auto bits = *rc::gen::arbitrary<uint64_t>();
    for (int64_t i = 0; i < lanes.Count() * blocks.QBlocks() * blocks.KvBlocks(); ++i) {
      const int64_t row = i / blocks.KvBlocks();
      blocks.Set(row / blocks.QBlocks(), row % blocks.QBlocks(), i % blocks.KvBlocks(),
                 (bits >> (i * 7 % 61)) & 1);
    }
    mask.layers.push_back(blocks);
  }

  WriteMaskFile(folder / "m.npy", mask);
  const MaskFile read = ReadMaskFile(folder / "m.npy");
  RC_ASSERT(read.layers == mask.layers);
  RC_ASSERT(read.has_layer_axis == mask.has_layer_axis);
  RC_ASSERT(read.orders == mask.orders);
  RC_ASSERT(read.grid == mask.grid);
  RC_ASSERT(read.layer == mask.layer);
  RC_ASSERT(read.step == mask.step);
  RC_ASSERT(folder.FileCount() == 2);
}

// Whatever happens to either file: an InputError or a mask, never a crash.
TEST(MaskFile, DamagedFilesAreRefusedOrRead) {
  const TempFolder folder;
  WriteArray(folder / "m.npy", {4, 5, 6});
  folder.Write(
      "m.json",
      R"({"version":1,"batch":2,"heads":2,"block":64,"grid":[5,8,8],"orders":"fhw","kv_tokens":384})");
  ASSERT_NO_THROW(ReadMaskFile(folder / "m.npy"));
  int64_t refused = 0;
  for (const std::string name : {"m.npy", "m.json"}) {
    const std::string good = folder.Read(name);
    const auto attempt = [&](const std::string& contents) {
      folder.Write(name, contents);
      try {
        ReadMaskFile(folder / "m.npy");
      } catch (const InputError&) {
        ++refused;
      }
    };
    for (size_t size = 0; size < good.size(); ++size) attempt(good.substr(0, size));
    for (size_t i = 0; i < good.size(); ++i) {
      for (char flip : {'\x01', '\x02', '\x10', '\x20', '\x80'}) {
        std::string changed = good;
        changed[i] = static_cast<char>(changed[i] ^ flip);
        attempt(changed);
      }
    }
    folder.Write(name, good);
  }
  EXPECT_GT(refused, 0);
}

TEST(MaskFile, ReadsTheReferenceMasks) {
  const MaskFile mask = ReadMaskFile(InRepository("tests/data/vectors/wan_h12_b128.mask.npy"));
  EXPECT_EQ(mask.lanes().heads, 12);
  EXPECT_EQ(mask.layers[0].QBlocks(), 128);
  EXPECT_GT(mask.layers[0].Kept(), 0);
}

}  // namespace
}  // namespace equitile

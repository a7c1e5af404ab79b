#include "equitile/pattern/token_order.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "equitile/base/error.h"
#include "equitile/pattern/token_order_list.h"

namespace equitile {
namespace {

const std::vector<const char*> kNames = {
    "fhw",     "fwh",         "hfw",         "hwf",         "wfh",         "whf",
    "hilbert", "tiles:1x1x1", "tiles:4x8x8", "tiles:8x4x8", "tiles:8x8x4", "tiles:65535x1x7"};

TEST(TokenOrder, NamesAndValuesAreOneToOne) {
  std::set<TokenOrder> values;
  std::set<uint64_t> hashes;
  for (const char* name : kNames) {
    const TokenOrder order = ParseTokenOrder(name);
    EXPECT_EQ(TokenOrderName(order), name);
    EXPECT_EQ(order, ParseTokenOrder(name));
    values.insert(order);
    hashes.insert(Hasher().Add(order).Digest());
  }
  EXPECT_EQ(values.size(), kNames.size());
  EXPECT_EQ(hashes.size(), kNames.size());
}

TEST(TokenOrder, Aliases) {
  EXPECT_EQ(ParseTokenOrder("frame_major"), TokenOrder::kFHW);
  EXPECT_EQ(ParseTokenOrder("space_major"), TokenOrder::kHWF);
  EXPECT_EQ(TokenOrder(), TokenOrder::kFHW);
}

TEST(TokenOrder, IsSmallAndKnowsItsParts) {
  static_assert(sizeof(TokenOrder) == 8 && std::is_trivially_copyable_v<TokenOrder>);
  EXPECT_EQ(TokenOrder::Tiles(4, 8, 65535).TileExtents(), (std::array<int64_t, 3>{4, 8, 65535}));
  EXPECT_TRUE(TokenOrder::Tiles(1, 1, 1).IsTiles());
  EXPECT_EQ(TokenOrder::kWHF.Axes(), "whf");
  EXPECT_EQ(TokenOrder::kHilbert.Axes(), "");
}

TEST(TokenOrder, RefusesOtherNames) {
  for (const char* bad : {"",
                          "fh",
                          "ffw",
                          "FHW",
                          "fhwx",
                          "Hilbert",
                          "hilbert ",
                          "tiles",
                          "tiles:",
                          "tiles:4",
                          "tiles:4x4",
                          "tiles:4x4x",
                          "tiles:4x4x4x",
                          "tiles:4x4x4x4",
                          "tiles:0x4x4",
                          "tiles:4x-1x4",
                          "tiles:4x4x65536",
                          "tiles:4x4x99999999999999999999",
                          "tiles:4X4X4",
                          "tiles: 4x4x4",
                          "tiles:+4x4x4",
                          "tiles:4x4x4 "}) {
    EXPECT_THROW(ParseTokenOrder(bad), InputError) << bad;
  }
  EXPECT_THROW(TokenOrder::Tiles(0, 1, 1), InputError);
}

TEST(TokenOrder, ListsReadBack) {
  const std::vector<TokenOrder> orders{TokenOrder::kHWF, TokenOrder::Tiles(2, 3, 4),
                                       TokenOrder::kHilbert};
  EXPECT_EQ(TokenOrdersText(orders), "hwf+tiles:2x3x4+hilbert");
  EXPECT_EQ(ParseTokenOrders("hwf+tiles:2x3x4+hilbert"), orders);
  EXPECT_EQ(TokenOrdersText({}), "");
  EXPECT_TRUE(ParseTokenOrders("").empty());
  for (const char* text : {"fhw+", "+fhw", "fhw hwf", "x"})
    EXPECT_THROW(ParseTokenOrders(text), InputError) << text;
}

}  // namespace
}  // namespace equitile

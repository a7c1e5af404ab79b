#include "equitile/base/hash.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace equitile {
namespace {

// From the FNV authors' table.
TEST(Hash, Fnv1aKnownAnswers) {
  EXPECT_EQ(Fnv1a64(""), 0xcbf29ce484222325);
  EXPECT_EQ(Fnv1a64("a"), 0xaf63dc4c8601ec8c);
  EXPECT_EQ(Fnv1a64("foobar"), 0x85944171f73967e8);
  EXPECT_EQ(Fnv1a64("bar", Fnv1a64("foo")), Fnv1a64("foobar"));
}

TEST(Hash, MixBitsIsABijectionOnWhatWeTry) {
  std::set<uint64_t> images;
  for (uint64_t i = 0; i < 1000; ++i) images.insert(MixBits(i));
  for (int bit = 10; bit < 64; ++bit) images.insert(MixBits(uint64_t{1} << bit));
  EXPECT_EQ(images.size(), 1054u);
}

uint64_t Of(const std::vector<int64_t>& values) {
  Hasher hasher;
  for (int64_t value : values) hasher.Add(value);
  return hasher.Digest();
}

TEST(Hash, OrderNumberAndValueMatter) {
  EXPECT_EQ(Of({1, 2, 3}), Of({1, 2, 3}));
  std::set<uint64_t> digests = {Of({}),        Of({0}),     Of({0, 0}),    Of({1, 2, 3}),
                                Of({3, 2, 1}), Of({1, 23}), Of({1, 2, 4}), Of({-1})};
  EXPECT_EQ(digests.size(), 8u);
  EXPECT_NE(Hasher().Add(0.0).Digest(), Hasher().Add(-0.0).Digest());
  EXPECT_NE(Hasher().Add(std::string_view("ab")).Add(std::string_view("c")).Digest(),
            Hasher().Add(std::string_view("a")).Add(std::string_view("bc")).Digest());
}

// Files and other machines hold these: they may never change.
TEST(Hash, Pinned) {
  const std::vector<int32_t> values = {4, 5, 6};
  EXPECT_EQ(Hasher()
                .Add(1)
                .Add(int64_t{-2})
                .Add(std::string_view("three"))
                .Add(std::span(values))
                .Digest(),
            0x9a3a66d5a48d3d52);
  EXPECT_EQ(Hasher().Add(0.5f).Add(1e300).Digest(), 0x5070c1e00be29424);
}

TEST(Hash, WidthOfAnIntegerDoesNotMatter) {
  EXPECT_EQ(Hasher().Add(int32_t{-7}).Digest(), Hasher().Add(int64_t{-7}).Digest());
}

}  // namespace
}  // namespace equitile

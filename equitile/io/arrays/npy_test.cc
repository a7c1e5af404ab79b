#include "equitile/io/arrays/npy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "equitile/base/error.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

// A file as NumPy would write it, except for what the test wants to be different.
std::string File(const std::string& dict, const std::string& data, char major = 1) {
  std::string header = dict + "\n";
  std::string file = "\x93NUMPY";
  file += major;
  file += '\0';
  file += static_cast<char>(header.size() & 0xFF);
  file += static_cast<char>(header.size() >> 8);
  if (major > 1) file += std::string(2, '\0');
  return file + header + data;
}

std::string Dict(const std::string& descr, const std::string& shape,
                 const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
}

bool Accepted(const std::string& file) {
  try {
    ParseNpyHeader(Bytes(file), "x.npy");
    return true;
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("x.npy"), std::string::npos) << error.what();
    return false;
  }
}

TEST(Npy, ReadsBackWhatItWrote) {
  const TempFolder folder;
  for (NpyType type : {NpyType::kBool, NpyType::kUint8, NpyType::kFloat16, NpyType::kFloat32}) {
    for (const std::vector<int64_t>& shape :
         std::vector<std::vector<int64_t>>{{}, {1}, {7}, {0}, {3, 0, 5}, {2, 3, 5, 1}}) {
      const int64_t count =
          std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
      std::vector<std::byte> data(static_cast<size_t>(count * NpyTypeBytes(type)));
      for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i % 2);
      WriteNpy(folder / "a.npy", type, shape, data);
      const NpyArray array = ReadNpy(folder / "a.npy");
      EXPECT_EQ(array.type, type);
      EXPECT_EQ(array.shape, shape);
      EXPECT_EQ(array.data, data);
      EXPECT_EQ(ParseNpyHeader(Bytes(folder.Read("a.npy")), "a").data_offset % 64, 0U);
    }
  }
}

TEST(Npy, AllFormatVersions) {
  for (char major : {1, 2, 3}) EXPECT_TRUE(Accepted(File(Dict("|u1", "(2, 3)"), "abcdef", major)));
  for (char major : {0, 4, 127})
    EXPECT_FALSE(Accepted(File(Dict("|u1", "(2, 3)"), "abcdef", major)));
}

TEST(Npy, HeadersOfOtherWriters) {
  EXPECT_TRUE(
      Accepted(File("{\"shape\":(2L,3L),\"descr\":\"|u1\",\"fortran_order\":False}", "abcdef")));
  EXPECT_TRUE(
      Accepted(File("{ 'descr' : '|b1' , 'fortran_order' : False , 'shape' : ( ) }      ", "a")));
  EXPECT_TRUE(
      Accepted(File(Dict("|u1", "(1, 6, 1)", "True"), "abcdef")));  // the order makes no difference
}

TEST(Npy, RefusesWhatItCannotHold) {
  for (const char* descr : {"<f8", ">f4", "<i2", "|i1", "|O", "", ">f2"}) {
    EXPECT_FALSE(Accepted(File(Dict(descr, "(6,)"), "abcdef"))) << descr;
  }
  EXPECT_FALSE(Accepted(File(Dict("|u1", "(2, 3)", "True"), "abcdef")));
  EXPECT_FALSE(Accepted(
      File("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,), }", "abcdef")));
}

TEST(Npy, SizesMustAgree) {
  const std::string too_long(1000, '9');
  for (const std::string& shape :
       {std::string("(5,)"), std::string("(7,)"), std::string("(0,)"), std::string("()"),
        std::string("(-6,)"), std::string("(4611686018427387904, 4)"),
        std::string("(9223372036854775807, 9223372036854775807)"),
        std::string("(4294967296, 4294967296)"), std::string("(") + too_long + ",)"}) {
    EXPECT_FALSE(Accepted(File(Dict("|u1", shape), "abcdef"))) << shape;
  }
  // 2^32 x 2^32 elements wrap to none.
  EXPECT_FALSE(Accepted(File(Dict("|u1", "(4294967296, 4294967296)"), "")));
  // 2^62 floats are 2^64 bytes, which wraps to none.
  EXPECT_FALSE(Accepted(File(Dict("<f4", "(4611686018427387904,)"), "")));
  EXPECT_TRUE(Accepted(File(Dict("|u1", "(0, 9223372036854775807, 9223372036854775807)"), "")));
}

TEST(Npy, RefusesMalformedHeaders) {
  for (const char* dict :
       {"", "{", "}", "{}", "{'descr'", "{'descr': '|u1'}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': 6}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (6}",
        "{'descr': '|u1', 'fortran_order': 0, 'shape': (6,)}",
        "{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (6,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (6,), 'more': 1}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (6,)} x",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (6,,)}", "{'descr: '|u1'}"}) {
    EXPECT_FALSE(Accepted(File(dict, "abcdef"))) << dict;
  }
}

TEST(Npy, EveryTruncationIsRefused) {
  for (char major : {1, 2}) {
    const std::string file = File(Dict("<f4", "(2, 3)"), std::string(24, 'x'), major);
    ASSERT_TRUE(Accepted(file));
    for (size_t size = 0; size < file.size(); ++size)
      EXPECT_FALSE(Accepted(file.substr(0, size))) << size;
    EXPECT_FALSE(Accepted(file + "x"));
  }
}

TEST(Npy, EveryFlippedByteIsRefusedOrHarmless) {
  const std::string file = File(Dict("|u1", "(2, 3)"), "abcdef", 2);
  for (size_t i = 0; i < file.size(); ++i) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = file;
      changed[i] = static_cast<char>(value);
      if (!Accepted(changed)) continue;
      const NpyHeader header = ParseNpyHeader(Bytes(changed), "x.npy");
      EXPECT_EQ(
          header.data_offset + static_cast<size_t>(header.Count() * NpyTypeBytes(header.type)),
          file.size());
    }
  }
}

TEST(Npy, MessagesNameTheFileAndTheTrouble) {
  const TempFolder folder;
  const auto path = folder.Write("short.npy", File(Dict("|u1", "(2, 3)"), "abcde"));
  try {
    ReadNpy(path);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()),
              "[io] " + path.string() +
                  ": truncated: shape (2, 3) of uint8 needs more than the 5 bytes that "
                  "follow the header");
  }
}

}  // namespace
}  // namespace equitile

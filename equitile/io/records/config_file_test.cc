#include "equitile/io/records/config_file.h"

#include <gtest/gtest.h>

#include "equitile/base/error.h"

namespace equitile {
namespace {

const ConfigFile& Sample() {
  static const ConfigFile config(
      R"({"_class_name":"A","n":3,"x":0.5,"whole":2,"yes":true,"word":"w","list":[1,2],"nothing":null,
          "pair":[null,"B"],"flags":[true,false],"off":false,"none":[],"extra":{"deep":1}})",
      "c.json");
  return config;
}

TEST(ConfigFile, ValuesAndDefaults) {
  const ConfigFile& c = Sample();
  EXPECT_EQ(c.Integer("n", 9), 3);
  EXPECT_EQ(c.Integer("missing", 9), 9);
  EXPECT_EQ(c.Number("x", 1), 0.5);
  EXPECT_EQ(c.Number("whole", 1), 2.0);
  EXPECT_TRUE(c.Bool("yes", false));
  EXPECT_EQ(c.Text("word", ""), "w");
  EXPECT_EQ(c.Integers("list", {}), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(c.Numbers("missing", {1.5}), (std::vector<double>{1.5}));
  EXPECT_EQ(c.Bools("flags", {}), (std::vector<bool>{true, false}));
  EXPECT_EQ(c.FindInteger("nothing"), std::nullopt);
  EXPECT_EQ(c.FindInteger("n"), 3);
  EXPECT_EQ(c.FindTexts("pair"), (std::vector<std::string>{"", "B"}));
  EXPECT_FALSE(c.Has("nothing"));
  EXPECT_TRUE(c.IsNull("nothing"));
  EXPECT_FALSE(c.IsNull("missing") || c.IsNull("off"));
  EXPECT_FALSE(c.Bool("nothing", true));
}

TEST(ConfigFile, WrongKindsAreNamed) {
  const ConfigFile& c = Sample();
  EXPECT_THROW(c.Integer("nothing", 1), InputError);
  EXPECT_THROW(c.Integer("x", 1), InputError);
  EXPECT_THROW(c.Integer("n", 1, 4), InputError);
  EXPECT_THROW(c.Bool("n", true), InputError);
  EXPECT_THROW(c.Integers("flags", {}), InputError);
  EXPECT_THROW(c.CheckUnused("yes"), InputError);
  EXPECT_THROW(c.CheckUnused("n"), InputError);
  for (const char* key : {"off", "none", "nothing", "missing"}) EXPECT_NO_THROW(c.CheckUnused(key));
  EXPECT_NO_THROW(c.CheckClass("A"));
  try {
    c.CheckClass("B");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "[io] c.json: '_class_name' holds \"A\": this class is not supported; B is");
  }
}

TEST(ConfigFile, MustBeAnObjectWithoutKeysTwice) {
  EXPECT_THROW(ConfigFile("[1]", "c"), InputError);
  EXPECT_THROW(ConfigFile("{", "c"), InputError);
  EXPECT_THROW(ConfigFile(R"({"a":1,"a":1})", "c"), InputError);
  EXPECT_THROW(ConfigFile(R"({"b":{"a":1,"a":1}})", "c"), InputError);
  EXPECT_NO_THROW(ConfigFile(R"({"b":{"a":1},"a":{"a":1}})", "c"));
  EXPECT_THROW(ConfigFile("{\"a\":" + std::string(200, '[') + std::string(200, ']') + "}", "c"),
               InputError);
}

}  // namespace
}  // namespace equitile

#include "equitile/io/records/settings_file.h"

#include <gtest/gtest.h>

#include "tests/refusal.h"

namespace equitile {
namespace {

constexpr auto kText = SettingKind::kText, kNumber = SettingKind::kNumber,
               kBool = SettingKind::kBool, kNull = SettingKind::kNull;

std::string RefusalOf(std::string_view text) {
  return Refusal([&] { ParseSettings(text, "f"); });
}

TEST(SettingsFile, Json) {
  const std::vector<Setting> expected = {{"prompt", kText, "a \"star\""},
                                         {"steps", kNumber, "20"},
                                         {"cfg-scale", kNumber, "2.5"},
                                         {"vae_tiling", kBool, "true"},
                                         {"planner", kNull, ""}};
  EXPECT_EQ(ParseSettings(R"( {"prompt": "a \"star\"", "steps": 20, "cfg-scale": 2.5,
                               "vae_tiling": true, "planner": null})",
                          "f"),
            expected);
  EXPECT_EQ(
      SettingsJson(expected).dump(),
      R"({"prompt":"a \"star\"","steps":20,"cfg-scale":2.5,"vae_tiling":true,"planner":null})");
}

TEST(SettingsFile, Toml) {
  const std::vector<Setting> expected = {{"prompt", kText, "a \"star\" # é😀\t"},
                                         {"literal", kText, R"(C:\x "y")"},
                                         {"steps", kNumber, "1000"},
                                         {"seed", kNumber, "-3"},
                                         {"shift", kNumber, "2.5e1"},
                                         {"vae-tiling", kBool, "true"},
                                         {"quoted key", kBool, "false"},
                                         {"empty", kText, ""}};
  EXPECT_EQ(
      ParseSettings("\xEF\xBB\xBF# a comment\n"
                    "prompt = \"a \\\"star\\\" # \\u00e9\\ud83d\\ude00\\t\"  # and another\r\n"
                    "\n"
                    "literal='C:\\x \"y\"'\n"
                    "  steps =  +1_000\n"
                    "seed = -3# no blank\n"
                    "shift=2.5e1\n"
                    "vae-tiling = true\n"
                    "\"quoted key\" = false\n"
                    "empty = ''",
                    "f"),
      expected);
  EXPECT_TRUE(ParseSettings("", "f").empty());
}

TEST(SettingsFile, WhatIsWrongIsNamedWithItsPlace) {
  for (const auto& [text, mention] : {
           std::pair("a = 1\nb = euler\n", "f, line 2: 'euler' must be"),
           std::pair("a = 1\n\na = 2\n", "f, line 3: key 'a' is there twice"),
           std::pair("[table]\n", "line 1: tables and lists"),
           std::pair("a = [1]\n", "line 1: '[1]' must be"),
           std::pair("a = \"x\n", "line 1: a quote is not closed"),
           std::pair("a = \"\"\"x\n", "several lines"),
           std::pair("a = \"\\q\"\n", "\"\\q\" is no text"),
           std::pair("a = \"\\ud800\"\n", "is no text"),
           std::pair("a = \"\xff\"\n", "is no text"),
           std::pair("a = \"x\\\"\n", "a quote is not closed"),
           std::pair("a.b = 1\n", "'a.b' is no key"),
           std::pair("a\n", "must be `key = value`"),
           std::pair("a =\n", "'' must be"),
           std::pair("a = 1 2\n", "'2' after the value"),
           std::pair("a = inf\n", "'inf' must be"),
           std::pair("a = --1\n", "'--1' must be"),
           std::pair("{\"a\": [1]}", "'a' must be a text, a number, true or false"),
           std::pair("{\"a\": {}}", "'a' must be"),
           std::pair("{\"a\": 1, \"a\": 2}", "key 'a' is there twice"),
           std::pair("{\"a\": 1", "not JSON"),
       }) {
    EXPECT_NE(RefusalOf(text).find(mention), std::string::npos) << text << "\n" << RefusalOf(text);
  }
}

}  // namespace
}  // namespace equitile

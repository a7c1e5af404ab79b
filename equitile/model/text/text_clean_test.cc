#include "equitile/model/text/text_clean.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "equitile/base/error.h"
#include "equitile/io/json_value.h"
#include "tests/in_repository.h"

namespace equitile {
namespace {

Json ReadJson(const std::string& name) {
  return ParseJson(ReadTextFile(InRepository("tests/data/" + name)), name);
}

TEST(TextClean, IsPromptCleanOfDiffusersOnStoredPrompts) {
  const Json cases = ReadJson("text/clean.json");
  ASSERT_GT(cases.size(), 500u);
  for (const Json& pair : cases) {
    EXPECT_EQ(CleanPrompt(pair[0].get<std::string>()), pair[1].get<std::string>())
        << pair[0].dump();
  }
}

TEST(TextClean, IsPromptCleanOfDiffusersOnTheGoldenPrompts) {
  const Json golden = ReadJson("../golden/text.json");
  for (const Json& entry : golden["prompts"]) {
    EXPECT_EQ(CleanPrompt(entry["prompt"].get<std::string>()), entry["cleaned"].get<std::string>());
  }
}

TEST(TextClean, RefusesWhatIsNotUtf8) {
  for (const std::string bytes : {"a\xFF", "\xC3", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80",
                                  "\xF4\x90\x80\x80", "\xF0\x9F\x91", "\x80"}) {
    EXPECT_THROW(CleanPrompt(bytes), InputError) << testing::PrintToString(bytes);
  }
  try {
    CleanPrompt("a fox \xFF");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "[model] prompt: byte 6 (0xFF) is not valid UTF-8; text must be UTF-8");
  }
}

}  // namespace
}  // namespace equitile

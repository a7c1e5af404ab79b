#include "apps/cli/progress.h"

#include <gtest/gtest.h>

#include <memory>

namespace equitile {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

std::string Contents(std::FILE* file) {
  std::rewind(file);
  std::string text(1000, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  return text;
}

TEST(Progress, ShortWorkShowsNothing) {
  File file(std::tmpfile(), std::fclose);
  {
    Progress progress("searching", {.stream = file.get()});
    for (int i = 0; i < 100; ++i) progress.Report(i, 100);
  }
  EXPECT_EQ(Contents(file.get()), "");
}

TEST(Progress, PlainLinesWhereNobodyLooks) {
  File file(std::tmpfile(), std::fclose);
  {
    Progress progress("searching",
                      {.stream = file.get(), .quiet_seconds = 0.0, .repeat_seconds = 3600.0});
    progress.Report(0, 20, "layer 0");
    progress.Report(1, 20, "layer 1");  // too soon after the first
  }
  EXPECT_EQ(Contents(file.get()), "searching: 0/20, layer 0\n");
}

}  // namespace
}  // namespace equitile

#include "equitile/io/atomic_write.h"

#include <gtest/gtest.h>

#include "equitile/base/error.h"
#include "equitile/io/mapped_file.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

void Write(const std::filesystem::path& path, const std::string& first,
           const std::string& second = "") {
  WriteFileAtomically(path, {std::as_bytes(std::span(first)), std::as_bytes(std::span(second))});
}

TEST(AtomicWrite, WritesAllPartsAndLeavesNothingElse) {
  const TempFolder folder;
  Write(folder / "a", "one ", "two");
  EXPECT_EQ(folder.Read("a"), "one two");
  Write(folder / "a", "");
  EXPECT_EQ(folder.Read("a"), "");
  EXPECT_EQ(folder.FileCount(), 1);
}

TEST(AtomicWrite, RefusesWhatCannotBeAFile) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "sub");
  EXPECT_THROW(Write(folder / "sub", "x"), InputError);
  EXPECT_THROW(Write(folder / "sub/", "x"), InputError);
  EXPECT_THROW(Write(folder / "missing" / "a", "x"), InputError);
  EXPECT_THROW(Write("", "x"), InputError);
  folder.Write("file", "old");
  EXPECT_THROW(Write(folder / "file" / "a", "x"), InputError);
  EXPECT_EQ(folder.FileCount(), 2);
  EXPECT_EQ(folder.Read("file"), "old");
}

TEST(AtomicWrite, FollowsSymbolicLinks) {
  const TempFolder folder;
  folder.Write("real", "old");
  std::filesystem::create_symlink("real", folder / "link");
  Write(folder / "link", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(folder.Read("real"), "new");
}

TEST(AtomicWrite, DevicesAreWrittenNotReplaced) {
  Write("/dev/null", "x");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  if (std::filesystem::exists("/dev/full")) {
    try {
      Write("/dev/full", "x");
      FAIL() << "a full device was not noticed";
    } catch (const InputError&) {
      FAIL() << "a full device is not the user's input";
    } catch (const Error&) {
    }
  }
}

TEST(MappedFile, ReadsFilesEmptyFilesAndRefusesTheRest) {
  const TempFolder folder;
  EXPECT_EQ(MappedFile(folder.Write("a", "abc")).bytes().size(), 3U);
  EXPECT_TRUE(MappedFile(folder.Write("empty", "")).bytes().empty());
  EXPECT_TRUE(MappedFile("/dev/null").bytes().empty());
  EXPECT_THROW(MappedFile(folder / "missing"), InputError);
  EXPECT_THROW(MappedFile(folder / "."), InputError);
}

}  // namespace
}  // namespace equitile

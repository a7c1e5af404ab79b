#include "equitile/io/temporary_name.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "equitile/io/atomic_write.h"
#include "tests/temp_folder.h"

namespace equitile {
namespace {

namespace fs = std::filesystem;

// The name that another process would give; `while_it_lives` is called before that process ends.
fs::path NameOfAnother(const fs::path& target,
                       const std::function<void(const fs::path&)>& while_it_lives) {
  int told[2], end[2];
  EXPECT_EQ(pipe(told), 0);
  EXPECT_EQ(pipe(end), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string name = TemporaryName(target).string();
    char byte = 0;
    const bool is_told = write(told[1], name.data(), name.size()) > 0 && close(told[1]) == 0;
    close(end[1]);
    _exit(is_told && read(end[0], &byte, 1) == 0 ? 0 : 1);
  }
  close(told[1]);
  std::string name;
  for (char byte = 0; read(told[0], &byte, 1) == 1;) name += byte;
  while_it_lives(name);
  close(end[1]);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(told[0]);
  close(end[0]);
  return name;
}

TEST(TemporaryName, IsBesideItsTargetAndNeverTheSame) {
  const fs::path first = TemporaryName("a/b.mp4"), second = TemporaryName("a/b.mp4");
  EXPECT_NE(first, second);
  EXPECT_EQ(first.parent_path(), "a");
  EXPECT_TRUE(first.filename().string().starts_with(".b.mp4."));
  EXPECT_EQ(TemporaryName("b.mp4").parent_path(), "");
}

// Folders are looked into once, so that every question has one of its own.
TEST(TemporaryName, LeftoversGoOnlyWhenTheirProcessIsGone) {
  const auto is_kept = [](const std::string& name, const std::string& target) {
    const TempFolder folder;
    folder.Write(name, "x");
    RemoveLeftovers(folder / target);
    return folder.FileCount() == 1;
  };
  const TempFolder folder;
  const fs::path dead = NameOfAnother(folder / "a.mp4", [&](const fs::path& path) {
                          EXPECT_TRUE(is_kept(path.filename(), "a.mp4"));
                        }).filename();
  if (dead.string().find(".00000000-") != std::string::npos) GTEST_SKIP() << "no /proc";
  EXPECT_FALSE(is_kept(dead, "a.mp4"));
  EXPECT_TRUE(is_kept(dead, "b.mp4"));
  EXPECT_TRUE(is_kept(dead, ".a.mp4"));
  EXPECT_TRUE(is_kept(TemporaryName("a.mp4"), "a.mp4"));  // ours, which we write

  // Another process with our number, as in a container that is started again and again.
  std::string name = TemporaryName("a.mp4");
  const size_t end = name.rfind('-'), start = name.rfind('-', end - 1) + 1;
  EXPECT_FALSE(is_kept(name.replace(start, end - start, "1"), "a.mp4"));

  // Other hosts, and files of others.
  const size_t host = std::string(".a.mp4.").size();
  std::string other = dead;
  other[host] = other[host] == '0' ? '1' : '0';
  EXPECT_TRUE(is_kept(other, "a.mp4"));
  for (const char* text :
       {".a.mp4.tmp", ".a.mp4.12-3.tmp", ".a.mp4.x-1-1-1.tmp", "a.mp4", ".tmp"}) {
    EXPECT_TRUE(is_kept(text, "a.mp4")) << text;
  }
}

TEST(TemporaryName, WritersAndTheirTrialsClean) {
  for (const int way : {0, 1, 2}) {
    const TempFolder folder;
    const fs::path target = folder / "frames" / "0001.png";
    fs::create_directories(target.parent_path());
    const fs::path left = NameOfAnother(target, [](const fs::path&) {});
    folder.Write("frames/" + left.filename().string(), "x");
    if (left.string().find(".00000000-") != std::string::npos) GTEST_SKIP() << "no /proc";
    if (way == 0) WriteFileAtomically(target, {});
    if (way == 1) AtomicFile(target).Commit();
    if (way == 2) CheckWritable(target);
    EXPECT_FALSE(fs::exists(left));
    EXPECT_EQ(fs::exists(target), way != 2);
  }
}

}  // namespace
}  // namespace equitile

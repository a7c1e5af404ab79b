#include "apps/cli/command_line.h"

#include <gtest/gtest.h>

#include <new>

#include "equitile/base/error.h"

namespace equitile {
namespace {

struct Outcome {
  int exit_code;
  std::string out, err;
};

Outcome RunWith(const std::vector<std::string>& args) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int exit_code = RunCommandLine(args);
  return {exit_code, testing::internal::GetCapturedStdout(),
          testing::internal::GetCapturedStderr()};
}

Outcome RunWork(const std::function<void()>& work) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int exit_code = ExitCodeOf(work);
  return {exit_code, testing::internal::GetCapturedStdout(),
          testing::internal::GetCapturedStderr()};
}

TEST(CommandLine, VersionAndHelpGoToStdout) {
  for (const char* flag : {"--version", "--help"}) {
    const Outcome outcome = RunWith({flag});
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_NE(outcome.out, "");
    EXPECT_EQ(outcome.err, "");
  }
}

TEST(CommandLine, MistakesAreOneLineAndExitCode2) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{},
                                             {"nonsense"},
                                             {"--nonsense"},
                                             {"-x"},
                                             {""},

                                             {"bench", "nonsense"},
                                             {"inspect"},
                                             {"inspect", "a", "b"},
                                             {"inspect", "--png"},
                                             {"generate", "-p", "--json", "-o", "x.mp4"},
                                             {"inspect", "x.npy", "--layer", "-1"}}) {
    const Outcome outcome = RunWith(args);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(outcome.err.starts_with("equitile: ")) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

TEST(CommandLine, SuggestsTheNearestName) {
  EXPECT_NE(RunWith({"--verzion"}).err.find("did you mean --version?"), std::string::npos);
  EXPECT_NE(RunWith({"bensh"}).err.find("did you mean bench?"), std::string::npos);
  EXPECT_EQ(RunWith({"--something-else"}).err.find("did you mean"), std::string::npos);
  EXPECT_NE(RunWith({"generate", "--frames", "5"}).err.find("did you mean --num-frames?"),
            std::string::npos);
  EXPECT_NE(RunWith({"generate", "--dry"}).err.find("did you mean --dry-run?"), std::string::npos);
}

// A value may look like a flag, as long as it is none.
TEST(CommandLine, ValuesThatBeginWithDashes) {
  for (const char* name : {"--_a_b", "-x.npy", "--1 2=3"}) {
    const Outcome outcome = RunWith({"plan", "--mask", name, "--for-ranks", "2"});
    EXPECT_NE(outcome.err.find(name), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("unknown flag"), std::string::npos) << outcome.err;
  }
  EXPECT_NE(RunWith({"plan", "--mask", "--json"}).err.find("--mask: a value is missing"),
            std::string::npos);
}

TEST(CommandLine, ExceptionsBecomeExitCodes) {
  EXPECT_EQ(RunWork([] {}).exit_code, 0);
  EXPECT_EQ(RunWork([] { throw InputError("[io] x: bad"); }).exit_code, 2);
  EXPECT_EQ(RunWork([] { throw Error("[exec] gone"); }).exit_code, 1);
  EXPECT_EQ(RunWork([] { throw std::bad_alloc(); }).exit_code, 1);
  EXPECT_EQ(RunWork([] { throw InputError("two\nlines"); }).err, "equitile: two lines\n");
}

}  // namespace
}  // namespace equitile

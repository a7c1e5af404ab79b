#include "apps/cli/progress.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
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

TEST(Progress, SaysFirstWhatItIsAbout) {
  File quiet(std::tmpfile(), std::fclose), file(std::tmpfile(), std::fclose);
  {
    Progress progress("", {.stream = quiet.get()});
    progress.Head("a video");
    progress.ShowBar("step", "1/4", 0.25, "");
  }
  EXPECT_EQ(Contents(quiet.get()), "");  // too short for a word
  {
    Progress progress("", {.stream = file.get(), .quiet_seconds = 0.0, .repeat_seconds = 0.0});
    progress.Head("a video");
    progress.ShowBar("step", "1/4", 0.25, "1.5 s/it");
    progress.ShowBar("step", "2/4", 0.5, "");
  }
  EXPECT_EQ(Contents(file.get()), "a video\nstep 1/4  1.5 s/it\nstep 2/4\n");
}

// A terminal that nobody looks at: what it is sent.
class PseudoTerminal {
 public:
  PseudoTerminal() {
    int controller = -1, terminal = -1;
    winsize size{.ws_row = 24, .ws_col = 60, .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(openpty(&controller, &terminal, nullptr, nullptr, &size), 0);
    controller_ = controller;
    stream_ = fdopen(terminal, "w");
  }
  ~PseudoTerminal() {
    std::fclose(stream_);
    close(controller_);
  }
  std::FILE* stream() { return stream_; }
  // The kernel hands over what was written a little later, on a busy machine in pieces.
  std::string Sent() {
    std::fflush(stream_);
    std::string text;
    pollfd more{.fd = controller_, .events = POLLIN, .revents = 0};
    while (poll(&more, 1, 300) > 0) {
      char part[4096];
      const ssize_t count = read(controller_, part, sizeof(part));
      if (count <= 0) break;
      text.append(part, static_cast<size_t>(count));
    }
    return text;
  }

 private:
  int controller_ = -1;
  std::FILE* stream_ = nullptr;
};

TEST(Progress, ABarThatGoesBeforeOthersPrint) {
  PseudoTerminal terminal;
  Progress progress("", {.stream = terminal.stream(), .quiet_seconds = 0, .redraw_seconds = 0});
  progress.Head("a video");
  EXPECT_EQ(terminal.Sent(), "a video\r\n");
  progress.ShowBar("step", "5/20", 0.25, "1.5 s/it  and forty letters of the ");
  std::string bar = terminal.Sent();
  const bool unicode = Terminal::Of(terminal.stream()).unicode;
  // What is left of 59 columns.
  const std::string wanted = std::string("step 5/20 ") + (unicode ? "███░░░░░░░░░" : "###---------") +
                             "  1.5 s/it  and forty letters of the ";
  EXPECT_EQ(bar, "\r\x1b[K" + wanted);
  progress.ShowBar("step", "5/20", 0.25, "1.5 s/it  and more than sixty columns can hold");
  bar = terminal.Sent();
  EXPECT_EQ(bar, "\r\x1b[Kstep 5/20  1.5 s/it  and more than sixty columns can hold");
  progress.ShowBar("step", "5/20", 0.25, "1.5 s/it  and much more than sixty columns can hold");
  bar = terminal.Sent();
  const auto letters = std::count_if(bar.begin() + 4, bar.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  });
  EXPECT_EQ(letters, 59);  // the last column stays free: some terminals would go to the next line
  progress.Clear();
  EXPECT_EQ(terminal.Sent(), "\r\x1b[K");
}

// The first step of a large model takes minutes.
TEST(Progress, AnotherBarIsShownAtOnceOnATerminal) {
  PseudoTerminal terminal;
  Progress progress("", {.stream = terminal.stream(), .redraw_seconds = 3600});
  progress.ShowBar("loading", "92 %", 0.92, "");
  progress.ShowBar("loading", "95 %", 0.95, "");  // too soon
  progress.ShowBar("step", "0/20", 0, "");
  const std::string sent = terminal.Sent();
  EXPECT_EQ(sent.find("95 %"), std::string::npos) << sent;
  EXPECT_LT(sent.find("loading 92 %"), sent.find("step 0/20")) << sent;
  EXPECT_NE(sent.find("step 0/20"), std::string::npos) << sent;
  progress.ShowBar("step", "19/20", 0.95, "");
  progress.ShowBar("step", "20/20", 1, "");
  const std::string end = terminal.Sent();
  EXPECT_EQ(end.find("19/20"), std::string::npos) << end;
  EXPECT_NE(end.find("20/20"), std::string::npos) << end;
}

TEST(Progress, LongHeadsAreWrapped) {
  PseudoTerminal terminal;
  Progress progress("", {.stream = terminal.stream()});
  progress.Head("of forty letters, more or less, a long part, and what comes after it");
  EXPECT_EQ(terminal.Sent(),
            "of forty letters, more or less, a long part, and what\r\n  comes after it\r\n");
}

TEST(Progress, SignsThatATerminalHas) {
  Terminal terminal{.unicode = false};
  EXPECT_EQ(terminal.Letters("×2 at ρ 1.001"), "x2 at rho 1.001");
  terminal.unicode = true;
  EXPECT_EQ(terminal.Letters("×2 at ρ 1.001"), "×2 at ρ 1.001");
}

}  // namespace
}  // namespace equitile

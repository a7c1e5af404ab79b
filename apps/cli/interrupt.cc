#include "apps/cli/interrupt.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string_view>

namespace equitile {
namespace {

volatile std::sig_atomic_t interrupted = 0, at_terminal = 0;

struct sigaction old_int, old_term;

// A step or some frames may take a minute, in which someone at a terminal would see nothing happen.
constexpr std::string_view kNote = "\nequitile: ending in order; once more: at once\n";

extern "C" void NoteInterrupt(int signal) {
  interrupted = 1;
  std::signal(signal, SIG_DFL);
  if (at_terminal == 0) return;
  const int error = errno;
  [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, kNote.data(), kNote.size());
  errno = error;
}

}  // namespace

InterruptWatch::InterruptWatch() {
  interrupted = 0;
  at_terminal = isatty(STDERR_FILENO);
  struct sigaction note {};
  note.sa_handler = NoteInterrupt;
  note.sa_flags = SA_RESTART;
  sigemptyset(&note.sa_mask);
  sigaction(SIGINT, &note, &old_int);
  sigaction(SIGTERM, &note, &old_term);
}

InterruptWatch::~InterruptWatch() {
  sigaction(SIGINT, &old_int, nullptr);
  sigaction(SIGTERM, &old_term, nullptr);
}

bool InterruptWatch::Requested() { return interrupted != 0; }

}  // namespace equitile

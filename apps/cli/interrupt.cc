#include "apps/cli/interrupt.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <string_view>

namespace equitile {
namespace {

volatile std::sig_atomic_t interrupted = 0, at_terminal = 0;

struct sigaction old_int, old_term;

// A step or some frames may take a minute, in which someone at a terminal would see nothing happen.
constexpr std::string_view kNote = "\nequitile: ending in order; once more: at once\n";

// A handler may not allocate.
char own_note[8192];
volatile std::sig_atomic_t own_note_size = 0;

extern "C" void NoteInterrupt(int signal) {
  interrupted = 1;
  std::signal(signal, SIG_DFL);
  const bool has_own = own_note_size > 0;
  if (at_terminal == 0 && !has_own) return;
  const int error = errno;
  const char* note = has_own ? own_note : kNote.data();
  const size_t size = has_own ? static_cast<size_t>(own_note_size) : kNote.size();
  [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, note, size);
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
  own_note_size = 0;
  sigaction(SIGINT, &old_int, nullptr);
  sigaction(SIGTERM, &old_term, nullptr);
}

std::string_view InterruptWatch::ShownNote() {
  if (interrupted == 0) return "";
  return {own_note, static_cast<size_t>(own_note_size)};
}

void InterruptWatch::SetNote(std::string_view line) {
  if (interrupted != 0) return;  // what was written stays
  own_note_size = 0;             // a signal between the two lines finds none
  const size_t size = std::min(line.size(), sizeof(own_note) - 1);
  std::copy_n(line.begin(), size, own_note);
  own_note[size] = '\n';
  std::atomic_signal_fence(std::memory_order_release);
  own_note_size = static_cast<std::sig_atomic_t>(size + 1);
}

bool InterruptWatch::Requested() { return interrupted != 0; }

}  // namespace equitile

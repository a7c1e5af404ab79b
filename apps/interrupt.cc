#include "apps/interrupt.h"

#include <csignal>

namespace equitile {
namespace {

volatile std::sig_atomic_t interrupted = 0;

struct sigaction old_int, old_term;

extern "C" void NoteInterrupt(int signal) {
  interrupted = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

InterruptWatch::InterruptWatch() {
  interrupted = 0;
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

// What the C functions of this folder share: exceptions as messages.
#pragma once

#include <exception>
#include <string>

namespace equitile {

inline std::string& LastError() {
  thread_local std::string message;
  return message;
}

// Runs `work`; false, and a message for equitile_error, when it throws.
template <typename Work>
bool Succeeds(const Work& work) {
  try {
    work();
    return true;
  } catch (const std::exception& error) {
    LastError() = error.what();
    return false;
  }
}

}  // namespace equitile

// What a user is told where something cannot be used.
#pragma once

#include <string>

#include "equitile/base/error.h"

namespace equitile {

// The message of the InputError that `work` throws; "" where it throws none.
template <typename Work>
std::string Refusal(const Work& work) {
  try {
    work();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace equitile

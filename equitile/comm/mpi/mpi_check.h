// The one wrapper around MPI calls: every return code is looked at.
#pragma once

#include <mpi.h>

#include <string>

#include "equitile/base/error.h"

namespace equitile::mpi {

inline std::string ErrorText(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return fmt::format("error {}", code);
  return std::string(text, static_cast<size_t>(length));
}

// `call` names what was called.
inline void Check(int code, const char* call) {
  if (code != MPI_SUCCESS) throw Error("[comm] {}: {}", call, ErrorText(code));
}

// EQ_MPI(MPI_Barrier(comm));
#define EQ_MPI(call) ::equitile::mpi::Check((call), #call)

}  // namespace equitile::mpi

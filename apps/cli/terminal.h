// What an output stream can show. Asked once per stream and handed down as a value, so that tests
// can pretend.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace equitile {

struct Terminal {
  // A person is looking: a line may be redrawn. Never under a launcher, which gives its processes
  // terminals also where it writes to a file itself.
  bool interactive = false;
  bool color = false;   // interactive, and neither NO_COLOR nor a dumb terminal says otherwise
  bool unicode = true;  // the locale is UTF-8
  int64_t columns = 80;

  static Terminal Of(std::FILE* stream);

  // With what it can show in the place of our few signs beyond ASCII: rho, x.
  std::string Letters(std::string text) const;
  std::string Bold(std::string_view text) const;
  std::string Dim(std::string_view text) const;
};

}  // namespace equitile

// The two kinds of failure. The world or the caller was wrong: an exception that names its room, the offending value and what
// would be right. We were wrong: EQ_CHECK, which stops the process at the broken invariant.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace equitile {

// A run failed (exit code 1): a device is full, a rank is gone, a check the user asked for is false.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
  template <typename First, typename... Rest>
  Error(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest)
      : std::runtime_error(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)) {}
};

// What was given cannot be used (exit code 2): a flag, a value, a file, a shape. Written as "[room] thing: what is wrong; what
// would be right".
class InputError : public Error {
 public:
  using Error::Error;
};

namespace internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, const std::string& message);
}  // namespace internal

// Kept in release builds, at room borders. The message is a format string with arguments, or absent.
#define EQ_CHECK(condition, ...)                                                                        \
  do {                                                                                                  \
    if (!(condition)) [[unlikely]]                                                                      \
      ::equitile::internal::CheckFailed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)

// For inner loops: gone where NDEBUG is set.
#ifdef NDEBUG
#define EQ_DCHECK(condition, ...) \
  do {                            \
    (void)sizeof(condition);      \
  } while (false)
#else
#define EQ_DCHECK EQ_CHECK
#endif

}  // namespace equitile

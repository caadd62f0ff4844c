// SPDX-License-Identifier: Apache-2.0
//
// Errors by whose fault it is: `Result<T>` for a client's input, `throw Error` (coluber/error.h) for the operator's
// set-up, COLUBER_CHECK for a broken invariant of ours (always on, throws Error(kInternal); COLUBER_DCHECK in debug
// builds only).
#pragma once

#include <fmt/core.h>

#include <string>
#include <tl/expected.hpp>
#include <utility>

#include "coluber/error.h"

namespace coluber {

// A client's mistake: the code, a message, and the parameter at fault where there is one.
struct Failure {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string message;
  std::string param;
};

template <typename T>
using Result = tl::expected<T, Failure>;

template <typename... Args>
[[nodiscard]] tl::unexpected<Failure> fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Failure>(Failure{code, fmt::format(format, std::forward<Args>(args)...), {}});
}

template <typename... Args>
[[nodiscard]] Error make_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// The value, or throws the failure as an Error: for operators' code that calls clients' functions.
template <typename T>
T value_or_throw(Result<T> result) {
  if (!result) throw Error(result.error().code, result.error().message);
  return std::move(*result);
}

[[noreturn]] void check_failed(const char* expression, const char* file, int line, const std::string& message);

}  // namespace coluber

#define COLUBER_CHECK(condition, ...)                                                         \
  do {                                                                                        \
    if (!(condition)) [[unlikely]]                                                            \
      ::coluber::check_failed(#condition, __FILE__, __LINE__, ::fmt::format("" __VA_ARGS__)); \
  } while (false)

#ifdef NDEBUG
#define COLUBER_DCHECK(condition, ...)                \
  do {                                                \
    if (false) COLUBER_CHECK(condition, __VA_ARGS__); \
  } while (false)
#else
#define COLUBER_DCHECK(condition, ...) COLUBER_CHECK(condition, __VA_ARGS__)
#endif

// SPDX-License-Identifier: Apache-2.0
//
// The exception by which a template's mistake leaves the interpreter: `chat_template.cc` catches it and makes it a
// Failure. It never crosses the folder's public header. The line is 0 until the interpreter, which knows where it is,
// fills it in.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>

namespace coluber::jinja {

enum class FaultKind {
  kSyntax,     // the template's text does not parse
  kRaised,     // the template called raise_exception
  kUndefined,  // something undefined was used as if it had a value
  kType,       // an operation on a value of the wrong type, a wrong argument
  kSecurity,   // what the sandbox forbids
  kLimit,      // steps, depth, memory or output ran out
};

struct Fault {
  FaultKind kind = FaultKind::kType;
  int line = 0;
  std::string message;
};

template <typename... Args>
[[noreturn]] void raise(FaultKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Fault{kind, 0, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
[[noreturn]] void raise_type(fmt::format_string<Args...> format, Args&&... args) {
  throw Fault{FaultKind::kType, 0, fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace coluber::jinja

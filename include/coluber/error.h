// SPDX-License-Identifier: Apache-2.0
//
// The one error type of the library. An operator's set-up faults (file, config, flag, device) and broken invariants
// throw `Error`; a client's input comes back as a `Result<T>` (src/base/error.h). `main`, the C API and `Engine::load`
// are where it is caught. One closed enum maps to exit codes here and to HTTP status in the server.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace coluber {

enum class ErrorCode {
  kOk = 0,
  kInvalidArgument,    // a value that the caller passed is wrong
  kNotFound,           // a file, tensor, model or name that is not there
  kInvalidData,        // a file that is damaged, truncated or not what it says
  kInvalidConfig,      // a model's or the engine's configuration does not make sense
  kUnsupported,        // valid, but this build or this engine cannot do it
  kContextLength,      // the tokens do not fit the model's context limit
  kOutOfMemory,        // memory that was asked for cannot be had
  kResourceExhausted,  // a pool or a queue is full now; later may work
  kIo,                 // reading or writing failed (disk full, closed pipe)
  kDevice,             // a device driver reported a fault
  kCancelled,          // stopped on request
  kNonFinite,          // a model produced a logit that is not finite
  kInternal,           // a broken invariant of ours
};

// Stable lower-case name, e.g. "invalid_data".
std::string_view error_code_name(ErrorCode code) noexcept;
// The exit status of a command that ends with this code (0 for kOk, 2 for kInvalidArgument, 130 for kCancelled).
int exit_code(ErrorCode code) noexcept;

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(without_zeros(message)), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  // what() ends at a zero byte, and names out of files may hold some.
  static std::string without_zeros(std::string message) {
    for (size_t place = 0; (place = message.find('\0', place)) != std::string::npos;)
      message.replace(place, 1, "\\x00");
    return message;
  }

  ErrorCode code_;
};

}  // namespace coluber

// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <string_view>

namespace coluber {

std::string_view error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kOk:
      return "ok";
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kInvalidData:
      return "invalid_data";
    case ErrorCode::kInvalidConfig:
      return "invalid_config";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kContextLength:
      return "context_length";
    case ErrorCode::kOutOfMemory:
      return "out_of_memory";
    case ErrorCode::kResourceExhausted:
      return "resource_exhausted";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kDevice:
      return "device";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kNonFinite:
      return "non_finite";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

int exit_code(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kOk:
      return 0;
    case ErrorCode::kInvalidArgument:
      return 2;
    case ErrorCode::kNotFound:
      return 3;
    case ErrorCode::kInvalidData:
      return 4;
    case ErrorCode::kInvalidConfig:
      return 5;
    case ErrorCode::kUnsupported:
      return 6;
    case ErrorCode::kContextLength:
      return 7;
    case ErrorCode::kOutOfMemory:
      return 8;
    case ErrorCode::kResourceExhausted:
      return 9;
    case ErrorCode::kIo:
      return 10;
    case ErrorCode::kDevice:
      return 11;
    case ErrorCode::kNonFinite:
      return 12;
    case ErrorCode::kInternal:
      return 70;
    case ErrorCode::kCancelled:
      return 130;  // what a shell reports for SIGINT
  }
  return 70;
}

void check_failed(const char* expression, const char* file, int line, const std::string& message) {
  // The build's absolute path tells a reader nothing: keep what follows the last "src/".
  std::string_view place = file;
  if (const size_t src = place.rfind("/src/"); src != std::string_view::npos) place.remove_prefix(src + 1);
  throw make_error(ErrorCode::kInternal,
                   "internal error at {}:{}: `{}` does not hold{}{} (a bug in coluber: please report it)", place, line,
                   expression, message.empty() ? "" : ": ", message);
}

}  // namespace coluber

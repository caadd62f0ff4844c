// SPDX-License-Identifier: Apache-2.0
#include "apps/server/api_error.h"

#include "base/log.h"

namespace coluber::server {
namespace {

constexpr size_t kMaxMessageBytes = 1000;

std::string_view type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

}  // namespace

Json ApiError::json() const {
  return Json(Json::Object{
      {"error",
       Json::Object{
           {"message", message}, {"type", type}, {"param", text_or_null(param)}, {"code", text_or_null(code)}}}});
}

int http_status(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kOk:
      return 200;
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kInvalidData:
    case ErrorCode::kUnsupported:
    case ErrorCode::kContextLength:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kCancelled:
      return 503;
    case ErrorCode::kInvalidConfig:
    case ErrorCode::kIo:
    case ErrorCode::kDevice:
    case ErrorCode::kNonFinite:
    case ErrorCode::kInternal:
      return 500;
  }
  return 500;
}

ApiError api_error(const Failure& failure) {
  ApiError error = api_error(http_status(failure.code), failure.message, error_code_name(failure.code));
  if (failure.code == ErrorCode::kContextLength) error.code = "context_length_exceeded";
  error.param = failure.param;
  return error;
}

ApiError api_error(const std::exception& thrown) {
  if (const auto* error = dynamic_cast<const Error*>(&thrown))
    return api_error(Failure{error->code(), error->what(), {}});
  log_warn("a request failed: {}", thrown.what());
  return api_error(Failure{ErrorCode::kInternal, "internal error", {}});
}

ApiError api_error(int status, std::string message, std::string_view code) {
  // What a client sent may stand in it, at any length.
  if (message.size() > kMaxMessageBytes) message = message.substr(0, kMaxMessageBytes) + "...";
  return {status, std::move(message), std::string(type_of(status)), {}, std::string(code)};
}

}  // namespace coluber::server

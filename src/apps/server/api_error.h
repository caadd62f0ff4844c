// SPDX-License-Identifier: Apache-2.0
//
// Errors as clients of OpenAI's API expect them: status, type, param and code, from the one ErrorCode of the project.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

namespace coluber::server {

struct ApiError {
  int status = 500;
  std::string message;
  std::string type = "server_error";
  std::string param = {};  // empty: null
  std::string code = {};   // likewise

  Json json() const;  // {"error": {...}}
};

int http_status(ErrorCode code) noexcept;
ApiError api_error(const Failure& failure);
// What was thrown: an Error by its code; of anything else the client hears nothing, and the log why.
ApiError api_error(const std::exception& thrown);
// For statuses that no ErrorCode stands for (401, 404, 405, 408, 413, 429, ...).
template <typename T>
using ApiResult = tl::expected<T, ApiError>;

ApiError api_error(int status, std::string message, std::string_view code);

}  // namespace coluber::server

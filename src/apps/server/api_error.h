// SPDX-License-Identifier: Apache-2.0
//
// Errors as clients of OpenAI's API expect them: status, type, param and code, from the one ErrorCode of the project.
#pragma once

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
// For statuses that no ErrorCode stands for (401, 404, 405, 408, 413, 429, ...).
ApiError api_error(int status, std::string message, std::string_view code);

}  // namespace coluber::server

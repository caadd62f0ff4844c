// SPDX-License-Identifier: Apache-2.0
//
// One request to a route, from its head to its answer. For the files that define Service's routes.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "apps/server/service.h"

namespace coluber::server {

struct Service::Call {
  HttpRequest request;
  std::shared_ptr<HttpStream> stream;
  HttpHeaders headers;  // of the answer
  std::string id;
  std::string route = "none";
  std::string key;       // that let it in
  std::string argument;  // what stands in the path in the place of the route's {name}
  Json (*error_body)(const ApiError& error) = [](const ApiError& error) { return error.json(); };
  bool has_place = false;
  std::shared_ptr<RequestTrace> trace;  // null: nobody wants one
  std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
};

}  // namespace coluber::server

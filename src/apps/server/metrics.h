// SPDX-License-Identifier: Apache-2.0
//
// What Prometheus reads at /metrics, under vLLM's names where vLLM has one and `coluber:` elsewhere. metrics.cc is the
// only file that sees prometheus-cpp. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "apps/server/session_store.h"
#include "coluber/engine.h"

namespace coluber::server {

struct HttpServerStats;

class Metrics {
 public:
  explicit Metrics(const std::string& model_name);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void first_token(double seconds);
  void next_token(double seconds, int64_t tokens);  // since the token before
  void ended(FinishReason reason, double seconds, int64_t prompt_tokens, int64_t completion_tokens);
  void answered(std::string_view route, int status);

  // The text format, with the engine's counts as they are now.
  std::string text(const EngineStats& engine, const HttpServerStats& http, const SessionStore::Counts& sessions,
                   int64_t requests_in_flight);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coluber::server

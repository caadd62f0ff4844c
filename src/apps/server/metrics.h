// SPDX-License-Identifier: Apache-2.0
//
// What Prometheus reads at /metrics, under vLLM's names where vLLM has one and `coluber:` elsewhere. metrics.cc is the
// only file that sees prometheus-cpp. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "apps/server/session_store.h"
#include "apps/server/trace_exporter.h"
#include "coluber/engine.h"

namespace coluber::server {

struct HttpServerStats;
struct RequestTimes;

// What else is told of at the time of asking.
struct ServerCounts {
  SessionStore::Counts sessions;
  TraceExporter::Counts traces;
  int64_t requests_in_flight = 0;
};

class Metrics {
 public:
  explicit Metrics(const std::string& model_name);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void first_token(double seconds);
  void next_token(double seconds, int64_t tokens);  // since the token before
  void ended(FinishReason reason, const RequestTimes& times, int64_t prompt_tokens, int64_t completion_tokens);
  void answered(std::string_view route, int status);

  // The text format, with the engine's counts as they are now.
  std::string text(const EngineStats& engine, const HttpServerStats& http, const ServerCounts& counts);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coluber::server

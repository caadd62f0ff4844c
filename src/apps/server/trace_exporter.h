// SPDX-License-Identifier: Apache-2.0
//
// Sends traces to a collector, as OTLP over HTTP in JSON, many at a time and on a thread of its own. Whoever makes
// traces never waits: what a slow or absent collector leaves no room for is dropped and counted. `push` and `counts`
// may be called from any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "apps/server/trace.h"

namespace coluber::hub {
class HttpClient;
struct HttpReply;
}  // namespace coluber::hub

namespace coluber::server {

struct TraceExport {
  std::string endpoint;                                      // http or https; without a path /v1/traces is meant
  std::vector<std::pair<std::string, std::string>> headers;  // of every request: keys of a collector
  Attributes resource;                                       // who the traces are of
};

// What --otlp-traces-endpoint says, and OpenTelemetry's variables of the environment: OTEL_SERVICE_NAME,
// OTEL_RESOURCE_ATTRIBUTES, OTEL_EXPORTER_OTLP_HEADERS and OTEL_EXPORTER_OTLP_TRACES_HEADERS. Throws
// Error(kInvalidArgument).
TraceExport trace_export(std::string_view endpoint);

class TraceExporter {
 public:
  struct Counts {  // spans
    int64_t exported = 0;
    int64_t dropped = 0;   // for lack of room, or because the collector could not be reached
    int64_t rejected = 0;  // by the collector
  };

  explicit TraceExporter(TraceExport to);
  ~TraceExporter();  // sends what is left, where that takes no longer than a few seconds
  TraceExporter(const TraceExporter&) = delete;
  TraceExporter& operator=(const TraceExporter&) = delete;

  void push(Trace trace);
  Counts counts() const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Outcome { kTaken, kTryAgain, kRefused };

  void run();
  std::vector<Trace> next_batch();
  void deliver(const std::string& body, int64_t spans);
  Outcome send(const std::string& body, std::string* reason, double* wait_s, int64_t* rejected);
  bool wait_before_retry(double seconds, Clock::time_point give_up);
  void tell(const std::string& reason);
  bool is_late() const;

  const TraceExport to_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Trace> waiting_;
  Counts counts_;
  bool stopping_ = false;
  Clock::time_point stop_by_ = Clock::time_point::max();
  bool is_failing_ = false;  // the exporter's thread alone: the operator has been told
  std::unique_ptr<hub::HttpClient> client_;
  std::thread thread_;
};

}  // namespace coluber::server

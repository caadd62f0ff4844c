// SPDX-License-Identifier: Apache-2.0
//
// Traces as OpenTelemetry has them: where a request stands among the spans of whoever sent it (W3C Trace Context), its
// own spans, and both as OTLP's JSON. Plain values; sends nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace coluber::server {

struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits
  std::string parent_id;  // 16: the span that the request belongs to; empty: none
  bool sampled = true;
  std::string state = {};  // of other tracers; handed on as it came
};

// What a `traceparent` says; nothing where it is none, as the standard wants it.
std::optional<TraceContext> parse_traceparent(std::string_view value);

// Ids that nobody else has. Not thread-safe.
class TraceIds {
 public:
  TraceIds();
  std::string trace_id() { return digits() + digits(); }
  std::string span_id() { return digits(); }

 private:
  std::string digits();
  std::mt19937_64 random_;
};

using Attributes = std::vector<std::pair<std::string, Json>>;

struct Span {
  enum class Kind { kInternal = 1, kServer = 2 };  // OTLP's numbers
  std::string name;
  std::string id, parent_id;
  Kind kind = Kind::kInternal;
  int64_t begin_ns = 0, end_ns = 0;  // since 1970
  Attributes attributes = {};
  bool failed = false;
};

struct Trace {
  std::string id;
  std::string state = {};
  bool has_remote_parent = false;
  std::vector<Span> spans;
};

// An ExportTraceServiceRequest. `resource` tells who made the spans.
Json otlp_json(const std::vector<Trace>& traces, const Attributes& resource);

// "key=value,key=value" as OTEL_RESOURCE_ATTRIBUTES and its like have it, values with %XX. Throws
// Error(kInvalidArgument) that calls the text `name`.
std::vector<std::pair<std::string, std::string>> parse_key_values(std::string_view text, std::string_view name);

}  // namespace coluber::server

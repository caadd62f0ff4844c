// SPDX-License-Identifier: Apache-2.0
#include "apps/server/request_trace.h"

#include <algorithm>
#include <utility>

namespace coluber::server {

void RequestTimes::output(const RequestOutput& output) {
  if (output.finish_reason != FinishReason::kAbort)
    queue_us = std::min(output.queue_us, queue_us.value_or(output.queue_us));
  if (output.tokens.empty()) return;
  last_token = Clock::now();
  if (!first_token) first_token = last_token;
}

std::optional<RequestTimes::Clock::time_point> RequestTimes::taken_up() const {
  if (!added || !queue_us) return std::nullopt;
  return *added + std::chrono::microseconds(*queue_us);
}

double RequestTimes::between(Clock::time_point begin, Clock::time_point end) {
  return std::max(0.0, std::chrono::duration<double>(end - begin).count());
}

RequestTrace::RequestTrace(TraceContext context, TraceIds& ids, std::string name)
    : context_(std::move(context)), ids_(ids), name_(std::move(name)), id_(ids.span_id()) {}

// Names are OpenTelemetry's for generative models.
void RequestTrace::describe(const CompletionRequest& request) {
  const SamplingParams& sampling = request.sampling;
  set("gen_ai.operation.name", request.chat ? "chat" : "text_completion");
  set("gen_ai.request.choice.count", request.n);
  set("gen_ai.request.stream", request.stream);
  set("gen_ai.request.max_tokens", sampling.max_tokens);
  set("gen_ai.request.temperature", static_cast<double>(sampling.temperature));
  set("gen_ai.request.top_p", static_cast<double>(sampling.top_p));
  set("gen_ai.request.top_k", sampling.top_k);
  set("gen_ai.request.presence_penalty", static_cast<double>(sampling.presence_penalty));
  set("gen_ai.request.frequency_penalty", static_cast<double>(sampling.frequency_penalty));
  if (sampling.seed) set("gen_ai.request.seed", static_cast<int64_t>(*sampling.seed));
}

int64_t RequestTrace::unix_ns(Clock::time_point at) const {
  using std::chrono::duration_cast;
  using std::chrono::nanoseconds;
  return duration_cast<nanoseconds>(begun_wall_.time_since_epoch()).count() +
         duration_cast<nanoseconds>(at - begun_).count();
}

void RequestTrace::add(Trace& trace, std::string_view name, std::optional<Clock::time_point> begin,
                       std::optional<Clock::time_point> end) {
  if (!begin || !end) return;
  const Clock::time_point last = std::max(*begin, *end);  // the two may come from different threads
  trace.spans.push_back(
      {std::string(name), ids_.span_id(), id_, Span::Kind::kInternal, unix_ns(*begin), unix_ns(last)});
}

Trace RequestTrace::finish(int status) {
  const Clock::time_point now = Clock::now();
  const RequestTimes& t = times_;
  const std::optional<Clock::time_point> taken_up = t.taken_up();
  set("http.response.status_code", status);
  if (taken_up) set("gen_ai.latency.time_in_queue", RequestTimes::between(*t.added, *taken_up));
  if (t.first_token) set("gen_ai.latency.time_to_first_token", RequestTimes::between(begun_, *t.first_token));
  set("gen_ai.latency.e2e", RequestTimes::between(begun_, now));
  Trace trace{context_.trace_id, context_.state, !context_.parent_id.empty(), {}};
  trace.spans.push_back({name_, id_, context_.parent_id, Span::Kind::kServer, unix_ns(begun_), unix_ns(now),
                         std::move(attributes_), status >= 500});
  add(trace, "prepare", begun_, t.added);
  add(trace, "queue", t.added, taken_up);
  add(trace, "prefill", taken_up, t.first_token.value_or(now));
  add(trace, "decode", t.first_token, t.last_token);
  return trace;
}

}  // namespace coluber::server

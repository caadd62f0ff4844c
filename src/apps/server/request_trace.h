// SPDX-License-Identifier: Apache-2.0
//
// What is noted of one request while it is answered, for its spans: one from its head to its end, and below it what it
// waited for: `prepare` (reading, template, tokens, grammar), `queue` (room in a step), `prefill` (to the first token),
// `decode` (to the last). Belongs to the thread of the connections. Holds no text of prompts or answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "apps/server/completion_request.h"
#include "apps/server/trace.h"

namespace coluber::server {

// When what happened to a request; what did not happen is not there.
struct RequestTimes {
  using Clock = std::chrono::steady_clock;
  Clock::time_point begun = Clock::now();
  std::optional<Clock::time_point> added;  // to the engine; may be told after its first output
  std::optional<int64_t> queue_us;         // then, to the first step that computed something of it
  std::optional<Clock::time_point> first_token, last_token;

  // Of several prompts the first one counts.
  void output(const RequestOutput& output);
  std::optional<Clock::time_point> taken_up() const;
  // Seconds from one to another; the two may come from different threads.
  static double between(Clock::time_point begin, Clock::time_point end);
};

class RequestTrace {
 public:
  RequestTrace(TraceContext context, TraceIds& ids, std::string name);

  const std::string& trace_id() const noexcept { return context_.trace_id; }
  void set(std::string_view key, Json value) { attributes_.emplace_back(key, std::move(value)); }
  void describe(const CompletionRequest& request);
  RequestTimes& times() noexcept { return times_; }

  // All of it, once the answer has ended.
  Trace finish(int status);

 private:
  using Clock = RequestTimes::Clock;
  int64_t unix_ns(Clock::time_point at) const;
  void add(Trace& trace, std::string_view name, std::optional<Clock::time_point> begin,
           std::optional<Clock::time_point> end);

  TraceContext context_;
  TraceIds& ids_;
  std::string name_, id_;
  RequestTimes times_;
  const Clock::time_point begun_ = Clock::now();
  const std::chrono::system_clock::time_point begun_wall_ = std::chrono::system_clock::now();
  Attributes attributes_;
};

}  // namespace coluber::server

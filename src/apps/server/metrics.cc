// SPDX-License-Identifier: Apache-2.0
#include "apps/server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <mutex>

#include "apps/server/http_server.h"
#include "apps/server/request_trace.h"
#include "base/error.h"

namespace coluber::server {
namespace {

using Labels = prometheus::Labels;
using Buckets = prometheus::Histogram::BucketBoundaries;

const Buckets kFirstTokenS = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25, 0.5,
                              0.75,  1.0,   2.5,  5.0,  7.5,  10.0, 20.0, 40.0, 80.0};
const Buckets kNextTokenS = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15,
                             0.2,   0.3,    0.4,   0.5,  0.75,  1.0,  2.5,   5.0};
const Buckets kWholeS = {0.3,  0.5,  0.8,  1.0,  1.5,  2.0,  2.5,   5.0,   10.0,
                         15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0};
const Buckets kTokens = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

}  // namespace

struct Metrics::Impl {
  prometheus::Registry registry;
  Labels labels;
  std::mutex mutex;
  std::map<std::string, prometheus::Counter*> counters;
  std::map<std::string, prometheus::Gauge*> gauges;
  prometheus::Histogram *first_token_s, *next_token_s, *whole_s, *queue_s, *prefill_s, *decode_s, *prompt_tokens,
      *completion_tokens;

  Labels with(const Labels& more) const {
    Labels all = labels;
    all.insert(more.begin(), more.end());
    return all;
  }
  prometheus::Histogram* histogram(const std::string& name, const std::string& help, const Buckets& buckets) {
    return &prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels, buckets);
  }
  // Looked up by name and labels: for what is counted once a request or once a scrape.
  prometheus::Counter& counter(const std::string& name, const std::string& help, const Labels& more = {}) {
    std::string key = name;
    for (const auto& [label, value] : more) key += "," + label + "=" + value;
    prometheus::Counter*& found = counters[key];
    if (found == nullptr) found = &prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(with(more));
    return *found;
  }
  // A counter never falls, whatever it is told.
  void count_to(const std::string& name, const std::string& help, int64_t total, const Labels& more = {}) {
    prometheus::Counter& found = counter(name, help, more);
    const double ahead = static_cast<double>(total) - found.Value();
    if (ahead > 0.0) found.Increment(ahead);
  }
  void set(const std::string& name, const std::string& help, double value, const Labels& more = {}) {
    std::string key = name;
    for (const auto& [label, text] : more) key += "," + label + "=" + text;
    prometheus::Gauge*& found = gauges[key];
    if (found == nullptr) found = &prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(with(more));
    found->Set(value);
  }
  void take_engine(const EngineStats& engine);
  void take_http(const HttpServerStats& http);
  void take_sessions(const SessionStore::Counts& sessions);
};

Metrics::Metrics(const std::string& model_name) : impl_(std::make_unique<Impl>()) {
  Impl& m = *impl_;
  m.labels = {{"model_name", model_name}};
  m.first_token_s =
      m.histogram("vllm:time_to_first_token_seconds", "from the request's coming to its first token", kFirstTokenS);
  m.next_token_s =
      m.histogram("vllm:inter_token_latency_seconds", "from one token of an answer to the next", kNextTokenS);
  m.whole_s = m.histogram("vllm:e2e_request_latency_seconds", "from the request's coming to its end", kWholeS);
  m.queue_s = m.histogram("vllm:request_queue_time_seconds", "that a request waited for its first step", kWholeS);
  m.prefill_s = m.histogram("vllm:request_prefill_time_seconds", "from there to its first token", kWholeS);
  m.decode_s = m.histogram("vllm:request_decode_time_seconds", "from its first token to its last", kWholeS);
  m.prompt_tokens = m.histogram("vllm:request_prompt_tokens", "tokens of a request's prompts", kTokens);
  m.completion_tokens = m.histogram("vllm:request_generation_tokens", "tokens of a request's answers", kTokens);
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort, FinishReason::kError})
    m.counter("vllm:request_success_total", "requests by how they ended",
              {{"finished_reason", std::string(finish_reason_name(reason))}});
}

Metrics::~Metrics() = default;

void Metrics::first_token(double seconds) { impl_->first_token_s->Observe(seconds); }

void Metrics::next_token(double seconds, int64_t tokens) {
  for (int64_t i = 0; i < tokens; ++i) impl_->next_token_s->Observe(seconds / static_cast<double>(tokens));
}

void Metrics::ended(FinishReason reason, const RequestTimes& times, int64_t prompt_tokens, int64_t completion_tokens) {
  Impl& m = *impl_;
  m.whole_s->Observe(RequestTimes::between(times.begun, RequestTimes::Clock::now()));
  if (const auto taken_up = times.taken_up(); taken_up && times.first_token) {
    m.queue_s->Observe(RequestTimes::between(*times.added, *taken_up));
    m.prefill_s->Observe(RequestTimes::between(*taken_up, *times.first_token));
    m.decode_s->Observe(RequestTimes::between(*times.first_token, *times.last_token));
  }
  m.prompt_tokens->Observe(static_cast<double>(prompt_tokens));
  m.completion_tokens->Observe(static_cast<double>(completion_tokens));
  const std::lock_guard lock(m.mutex);
  m.counter("vllm:request_success_total", "", {{"finished_reason", std::string(finish_reason_name(reason))}})
      .Increment();
  m.counter("vllm:prompt_tokens_total", "tokens of prompts").Increment(static_cast<double>(prompt_tokens));
  m.counter("vllm:generation_tokens_total", "tokens of answers").Increment(static_cast<double>(completion_tokens));
}

void Metrics::answered(std::string_view route, int status) {
  const std::lock_guard lock(impl_->mutex);
  impl_
      ->counter("coluber:http_requests_total", "requests by route and status",
                {{"route", std::string(route)}, {"status", std::to_string(status)}})
      .Increment();
}

void Metrics::Impl::take_engine(const EngineStats& engine) {
  const auto share = [](int64_t part, int64_t whole) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
  };
  set("vllm:num_requests_running", "answers that are being made", static_cast<double>(engine.running));
  set("vllm:num_requests_waiting", "answers that wait for room", static_cast<double>(engine.waiting));
  set("vllm:kv_cache_usage_perc", "share of the memory of states and pages that is in use, 1 is all",
      share(engine.recurrent_bytes + engine.attention_bytes, engine.memory_bytes));
  count_to("vllm:prefix_cache_queries_total", "prompt tokens that were looked for in the cache", engine.query_tokens);
  count_to("vllm:prefix_cache_hits_total", "of them, found", engine.hit_tokens);
  count_to("vllm:num_preemptions_total", "answers that made room for others", engine.preemptions);
  count_to("coluber:parked_total", "of them, put aside", engine.parked);
  count_to("coluber:parked_to_files_total", "of these, in files", engine.parked_to_files);
  count_to("coluber:recomputed_tokens_total", "tokens computed again", engine.recomputed_tokens);
  count_to("coluber:computed_tokens_total", "tokens run through the model", engine.computed_tokens);
  count_to("coluber:steps_total", "batches run", engine.steps);
  count_to("coluber:checkpoints_published_total", "states kept for later prompts", engine.checkpoints_published);
  count_to("coluber:checkpoints_evicted_total", "of them, dropped", engine.checkpoints_evicted);
  count_to("coluber:broken_states_total", "states that failed their check and were not used", engine.broken_states);
  count_to("coluber:non_finite_requests_total", "requests ended by logits that are not finite",
           engine.non_finite_requests);
  for (size_t i = 0; i < engine.miss_reasons.size(); ++i) {
    const std::string reason(miss_reason_name(static_cast<MissReason>(i)));
    count_to("coluber:cache_miss_reasons_total", "requests by why the cache gave no more", engine.miss_reasons[i],
             {{"reason", reason}});
  }
  const std::pair<const char*, int64_t> kinds[] = {{"recurrent", engine.recurrent_bytes},
                                                   {"attention", engine.attention_bytes},
                                                   {"cached_recurrent", engine.cached_recurrent_bytes},
                                                   {"cached_attention", engine.cached_attention_bytes},
                                                   {"parked", engine.parked_bytes},
                                                   {"parked_files", engine.parked_file_bytes}};
  for (const auto& [kind, bytes] : kinds)
    set("coluber:state_bytes", "memory of states and pages by kind", static_cast<double>(bytes), {{"kind", kind}});
  set("coluber:memory_bytes", "memory that states and pages may take", static_cast<double>(engine.memory_bytes));
  set("coluber:leaked_slots", "slots that nobody owns: always 0", static_cast<double>(engine.leaked_slots));
}

void Metrics::Impl::take_http(const HttpServerStats& http) {
  set("coluber:http_connections", "open connections", static_cast<double>(http.connections));
  count_to("coluber:http_connections_total", "connections that were accepted", http.accepted);
  count_to("coluber:http_connections_refused_total", "of them, one too many", http.refused);
  count_to("coluber:http_malformed_total", "requests that were no HTTP, or too large", http.malformed);
  count_to("coluber:http_timeouts_total", "requests that did not come, and answers not read, in time", http.timed_out);
  count_to("coluber:http_peers_gone_total", "clients that went away before their answer ended", http.peers_gone);
}

void Metrics::Impl::take_sessions(const SessionStore::Counts& sessions) {
  const std::string help = "sessions that clients keep, by where they are";
  set("coluber:sessions", help, static_cast<double>(sessions.in_memory), {{"where", "memory"}});
  set("coluber:sessions", help, static_cast<double>(sessions.parked), {{"where", "file"}});
  set("coluber:session_bytes", "memory of the cache that they hold", static_cast<double>(sessions.bytes));
  count_to("coluber:sessions_parked_total", "sessions put into files", sessions.parked_total);
  count_to("coluber:sessions_restored_total", "sessions that came back from there", sessions.restored_total);
}

std::string Metrics::text(const EngineStats& engine, const HttpServerStats& http, const ServerCounts& counts) {
  const std::lock_guard lock(impl_->mutex);
  impl_->take_engine(engine);
  impl_->take_http(http);
  impl_->take_sessions(counts.sessions);
  const std::string help = "spans of traces by what became of them";
  impl_->count_to("coluber:trace_spans_total", help, counts.traces.exported, {{"result", "exported"}});
  impl_->count_to("coluber:trace_spans_total", help, counts.traces.dropped, {{"result", "dropped"}});
  impl_->count_to("coluber:trace_spans_total", help, counts.traces.rejected, {{"result", "rejected"}});
  impl_->set("coluber:requests_in_flight", "requests that were accepted and have not ended",
             static_cast<double>(counts.requests_in_flight));
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace coluber::server

// SPDX-License-Identifier: Apache-2.0
#include "apps/server/trace_exporter.h"

#include <algorithm>
#include <cstdlib>

#include "apps/hub/http_transfer.h"
#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"

namespace coluber::server {
namespace {

using Seconds = std::chrono::duration<double>;

// Requests: a few megabytes, and some seconds of a busy server.
constexpr size_t kMaxWaiting = 4096;
constexpr size_t kMaxBatch = 256;
constexpr double kGatherS = 1.0;    // after the first of a batch
constexpr double kRequestS = 10.0;  // for the collector to answer
constexpr double kRetryS = 0.5, kMaxRetryS = 5.0;
constexpr double kGiveUpS = 30.0;  // with one batch
constexpr double kStopS = 3.0;     // for all that is left

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

bool may_succeed_later(int status) { return status == 429 || status == 502 || status == 503 || status == 504; }

int64_t spans_of(const std::vector<Trace>& traces) {
  int64_t spans = 0;
  for (const Trace& trace : traces) spans += std::ssize(trace.spans);
  return spans;
}

// {"partialSuccess": {"rejectedSpans": "3", "errorMessage": "..."}}; nothing where all were taken.
int64_t rejected_spans(const std::string& reply, std::string* reason) {
  const Result<Json> json = parse_json(reply, "the collector's answer");
  const Json* partial = json ? json->find("partialSuccess") : nullptr;
  const Json* count = partial != nullptr ? partial->find("rejectedSpans") : nullptr;
  if (count == nullptr) return 0;
  const Json* message = partial->find("errorMessage");
  *reason = message != nullptr && message->is_string() ? message->as_string() : "it says no reason";
  if (count->is_int()) return std::max<int64_t>(0, count->as_int());
  return count->is_string() ? std::max<int64_t>(0, std::atoll(count->as_string().c_str())) : 0;
}

}  // namespace

TraceExport trace_export(std::string_view endpoint) {
  TraceExport to;
  to.endpoint = endpoint;
  const size_t scheme = endpoint.starts_with("http://") ? 7 : endpoint.starts_with("https://") ? 8 : 0;
  if (scheme == 0 || endpoint.size() == scheme || endpoint[scheme] == '/')
    throw make_error(ErrorCode::kInvalidArgument,
                     "--otlp-traces-endpoint expects an address such as http://localhost:4318/v1/traces, found '{}'; "
                     "collectors take OTLP over HTTP at port 4318 (OTLP over gRPC is not spoken here)",
                     printable(endpoint));
  if (endpoint.find('/', scheme) == std::string_view::npos) to.endpoint += "/v1/traces";
  for (const char* name : {"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"})
    for (auto& header : parse_key_values(variable(name), name)) to.headers.push_back(std::move(header));
  const std::string service = variable("OTEL_SERVICE_NAME");
  to.resource = {{"service.name", service.empty() ? "coluber" : service}, {"service.version", COLUBER_VERSION}};
  for (auto& [key, value] : parse_key_values(variable("OTEL_RESOURCE_ATTRIBUTES"), "OTEL_RESOURCE_ATTRIBUTES")) {
    const auto known =
        std::find_if(to.resource.begin(), to.resource.end(), [&](const auto& a) { return a.first == key; });
    if (known == to.resource.end())
      to.resource.emplace_back(std::move(key), std::move(value));
    else if (key != "service.name" || service.empty())  // of the name the variable of its own counts
      known->second = std::move(value);
  }
  return to;
}

TraceExporter::TraceExporter(TraceExport to)
    : to_(std::move(to)),
      client_(std::make_unique<hub::HttpClient>("coluber/" COLUBER_VERSION, [this] { return is_late(); })),
      thread_([this] { run(); }) {}

TraceExporter::~TraceExporter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_by_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(kStopS));
    changed_.notify_all();
  }
  thread_.join();
}

void TraceExporter::push(Trace trace) {
  const std::lock_guard lock(mutex_);
  if (waiting_.size() >= kMaxWaiting) {
    counts_.dropped += std::ssize(trace.spans);
    return;
  }
  waiting_.push_back(std::move(trace));
  if (waiting_.size() == 1 || waiting_.size() == kMaxBatch) changed_.notify_all();
}

TraceExporter::Counts TraceExporter::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

bool TraceExporter::is_late() const {
  const std::lock_guard lock(mutex_);
  return Clock::now() >= stop_by_;
}

void TraceExporter::run() {
  for (;;) {
    const std::vector<Trace> batch = next_batch();
    if (batch.empty()) return;
    const int64_t spans = spans_of(batch);
    try {
      deliver(otlp_json(batch, to_.resource).dump(), spans);
    } catch (const std::exception& error) {  // stopped in mid-way, an address that is none, or no memory
      tell(error.what());
      const std::lock_guard lock(mutex_);
      counts_.dropped += spans;
    }
  }
}

// Empty where there is nothing more to come.
std::vector<Trace> TraceExporter::next_batch() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
  changed_.wait_for(lock, Seconds(kGatherS), [this] { return stopping_ || waiting_.size() >= kMaxBatch; });
  std::vector<Trace> batch;
  while (!waiting_.empty() && batch.size() < kMaxBatch) {
    batch.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return batch;
}

void TraceExporter::deliver(const std::string& body, int64_t spans) {
  const Clock::time_point give_up = Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(kGiveUpS));
  double backoff_s = kRetryS;
  for (;;) {
    std::string reason;
    double wait_s = 0.0;
    int64_t rejected = 0;
    const Outcome outcome = send(body, &reason, &wait_s, &rejected);
    tell(reason);
    if (outcome == Outcome::kTryAgain && wait_before_retry(std::max(wait_s, backoff_s), give_up)) {
      backoff_s = std::min(2.0 * backoff_s, kMaxRetryS);
      continue;
    }
    const std::lock_guard lock(mutex_);
    rejected = outcome == Outcome::kRefused ? spans : std::min(rejected, spans);
    if (outcome == Outcome::kTryAgain)
      counts_.dropped += spans;
    else
      counts_.rejected += rejected;
    if (outcome == Outcome::kTaken) counts_.exported += spans - rejected;
    return;
  }
}

TraceExporter::Outcome TraceExporter::send(const std::string& body, std::string* reason, double* wait_s,
                                           int64_t* rejected) {
  hub::HttpPost post{to_.endpoint, "application/json", to_.headers, body, kRequestS};
  try {
    const hub::HttpReply reply = client_->post(post);
    if (reply.ok()) {
      *rejected = rejected_spans(reply.text, reason);
      return Outcome::kTaken;
    }
    *reason = fmt::format("it answers with status {}", reply.status);
    if (!may_succeed_later(reply.status)) return Outcome::kRefused;
    if (const std::string* after = reply.header("retry-after"))
      *wait_s = std::clamp(std::atof(after->c_str()), 0.0, kGiveUpS);
    return Outcome::kTryAgain;
  } catch (const hub::TransferFailure& failure) {
    *reason = failure.reason;
    return Outcome::kTryAgain;
  }
}

// False where there is no time for another try.
bool TraceExporter::wait_before_retry(double seconds, Clock::time_point give_up) {
  const Clock::time_point again = Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
  std::unique_lock lock(mutex_);
  if (stopping_ || again >= give_up) return false;
  changed_.wait_until(lock, again, [this] { return stopping_; });  // at the end one more try, at once
  return true;
}

// Once when it begins to fail, and once when that is over.
void TraceExporter::tell(const std::string& reason) {
  if (!reason.empty() && !is_failing_)
    log_warn("traces do not get to {}: {}; they are dropped and counted (coluber:trace_spans_total) until they do",
             printable(to_.endpoint), printable(reason));
  if (reason.empty() && is_failing_) log_warn("traces get to {} again", printable(to_.endpoint));
  is_failing_ = !reason.empty();
}

}  // namespace coluber::server

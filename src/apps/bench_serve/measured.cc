// SPDX-License-Identifier: Apache-2.0
#include "apps/bench_serve/measured.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace coluber::bench_serve {
namespace {

constexpr size_t kLongestError = 300;

int64_t integer_at(const Json& object, std::string_view name) {
  const Json* found = object.find(name);
  return found != nullptr && found->is_int() ? found->as_int() : 0;
}

void append_text(const Json& object, std::string_view name, std::string& text) {
  if (const Json* found = object.find(name); found != nullptr && found->is_string()) text += found->as_string();
}

std::string message_of(const Json& event, const std::string& otherwise) {
  const Json* error = event.find("error");
  if (error == nullptr) return otherwise;
  const Json* message = error->find("message");
  return message != nullptr && message->is_string() ? message->as_string() : error->dump();
}

// The state of reading one stream.
class Reading {
 public:
  explicit Reading(Measured& into) : into_(into) {}

  void take(std::string_view line, double at_s) {
    if (!line.starts_with("data:")) return;
    line.remove_prefix(5);
    if (line.starts_with(" ")) line.remove_prefix(1);
    if (line == "[DONE]") {
      done_ = true;
      return;
    }
    const Result<Json> event = parse_json(line, "an event");
    if (!event) {
      into_.error = event.error().message;
    } else if (event->find("error") != nullptr) {
      into_.error = message_of(*event, {});
    } else {
      take_event(*event, at_s);
    }
  }

  void finish() {
    if (into_.error.empty() && !done_) into_.error = "the stream ended without [DONE]";
    if (into_.error.empty() && chunks_ == 0) into_.error = "the stream had no chunk of an answer";
    if (into_.first_s == 0.0) into_.first_s = into_.last_s = first_choice_s_;
    if (into_.output_tokens == 0) into_.output_tokens = chunks_;  // a server that tells no usage
  }

 private:
  void take_event(const Json& event, double at_s) {
    if (const Json* usage = event.find("usage"); usage != nullptr && usage->is_object()) {
      into_.prompt_tokens = integer_at(*usage, "prompt_tokens");
      into_.output_tokens = integer_at(*usage, "completion_tokens");
      if (const Json* details = usage->find("prompt_tokens_details"); details != nullptr)
        into_.cached_tokens = integer_at(*details, "cached_tokens");
    }
    const Json* choices = event.find("choices");
    if (choices == nullptr || !choices->is_array() || choices->as_array().empty()) return;
    const Json& choice = choices->as_array().front();
    ++chunks_;
    if (first_choice_s_ == 0.0) first_choice_s_ = at_s;
    std::string text;
    append_text(choice, "text", text);
    if (const Json* delta = choice.find("delta"); delta != nullptr) {
      append_text(*delta, "reasoning_content", text);
      append_text(*delta, "content", text);
    }
    if (text.empty()) return;
    if (into_.first_s == 0.0) {
      into_.first_s = at_s;
    } else {
      into_.gaps_s.push_back(at_s - into_.last_s);
    }
    into_.last_s = at_s;
    into_.answer += text;
  }

  Measured& into_;
  double first_choice_s_ = 0.0;
  int64_t chunks_ = 0;
  bool done_ = false;
};

std::string refusal(const Transfer& transfer) {
  const Result<Json> body = parse_json(transfer.body(), "the answer");
  return fmt::format("status {}: {}", transfer.status,
                     message_of(body ? *body : Json(), transfer.body()).substr(0, kLongestError));
}

}  // namespace

Measured measure(const Transfer& transfer) {
  Measured measured;
  measured.begun_s = transfer.begun_s;
  measured.ended_s = transfer.ended_s;
  measured.error = transfer.error;
  if (measured.error.empty() && transfer.status != 200) measured.error = refusal(transfer);
  if (!measured.error.empty()) return measured;
  Reading reading(measured);
  std::string left;
  for (const Piece& piece : transfer.pieces) {
    left += piece.bytes;
    size_t begin = 0;
    for (size_t end; (end = left.find('\n', begin)) != std::string::npos; begin = end + 1) {
      std::string_view line(left.data() + begin, end - begin);
      if (line.ends_with("\r")) line.remove_suffix(1);
      reading.take(line, piece.at_s);
    }
    left.erase(0, begin);
  }
  reading.finish();
  return measured;
}

Summary summary(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  // Between the two nearest, as numpy does it.
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto low = static_cast<size_t>(place);
    const size_t high = std::min(low + 1, values.size() - 1);
    return values[low] + (values[high] - values[low]) * (place - static_cast<double>(low));
  };
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {sum / static_cast<double>(values.size()), at(0.5), at(0.9), at(0.95), at(0.99)};
}

Report report(std::vector<Measured> requests) {
  Report all;
  all.requests = std::move(requests);
  std::vector<std::pair<double, int64_t>> changes;
  double begun = all.requests.empty() ? 0.0 : all.requests.front().begun_s, ended = begun;
  for (const Measured& one : all.requests) {
    begun = std::min(begun, one.begun_s);
    ended = std::max(ended, one.ended_s);
    changes.emplace_back(one.begun_s, 1);
    changes.emplace_back(one.ended_s, -1);
    if (!one.error.empty()) {
      ++all.failed;
      const auto known =
          std::find_if(all.errors.begin(), all.errors.end(), [&](const auto& e) { return e.first == one.error; });
      if (known == all.errors.end())
        all.errors.emplace_back(one.error, 1);
      else
        ++known->second;
      continue;
    }
    ++all.completed;
    all.input_tokens += one.prompt_tokens;
    all.cached_tokens += one.cached_tokens;
    all.output_tokens += one.output_tokens;
    all.ttft_ms.push_back(1000.0 * (one.first_s - one.begun_s));
    all.e2el_ms.push_back(1000.0 * (one.ended_s - one.begun_s));
    if (one.output_tokens > 1)
      all.tpot_ms.push_back(1000.0 * (one.last_s - one.first_s) / static_cast<double>(one.output_tokens - 1));
    for (const double gap : one.gaps_s) all.itl_ms.push_back(1000.0 * gap);
  }
  all.duration_s = ended - begun;
  std::sort(changes.begin(), changes.end());
  int64_t running = 0;
  for (const auto& [at, change] : changes) all.max_concurrent = std::max(all.max_concurrent, running += change);
  return all;
}

namespace {

double per_second(const Report& report, int64_t count) {
  return report.duration_s > 0.0 ? static_cast<double>(count) / report.duration_s : 0.0;
}

struct Column {
  std::string_view key, name;
  std::vector<double> Report::* values;
};
constexpr Column kColumns[] = {{"ttft", "TTFT (time to first token)", &Report::ttft_ms},
                               {"tpot", "TPOT (time per output token)", &Report::tpot_ms},
                               {"itl", "ITL  (inter-token latency)", &Report::itl_ms},
                               {"e2el", "E2EL (end-to-end latency)", &Report::e2el_ms}};

}  // namespace

Json report_json(const Report& report) {
  Json json(Json::Object{{"duration", report.duration_s},
                         {"completed", report.completed},
                         {"failed", report.failed},
                         {"total_input_tokens", report.input_tokens},
                         {"total_cached_tokens", report.cached_tokens},
                         {"total_output_tokens", report.output_tokens},
                         {"request_throughput", per_second(report, report.completed)},
                         {"output_throughput", per_second(report, report.output_tokens)},
                         {"total_token_throughput", per_second(report, report.input_tokens + report.output_tokens)},
                         {"max_concurrent_requests", report.max_concurrent}});
  for (const Column& column : kColumns) {
    const Summary all = summary(report.*column.values);
    for (const auto& [name, value] : {std::pair<const char*, double>{"mean", all.mean},
                                      {"median", all.median},
                                      {"p90", all.p90},
                                      {"p95", all.p95},
                                      {"p99", all.p99}})
      json.set(fmt::format("{}_{}_ms", name, column.key), value);
  }
  Json::Array errors;
  for (const auto& [message, count] : report.errors)
    errors.push_back(Json::Object{{"message", message}, {"count", count}});
  json.set("errors", std::move(errors));
  return json;
}

std::string report_text(const Report& report) {
  std::string text = fmt::format("{} requests in {:.2f} s, at most {} at once", report.completed, report.duration_s,
                                 report.max_concurrent);
  if (report.failed > 0) text += fmt::format("; {} failed", report.failed);
  text += "\n";
  const double cached = report.input_tokens > 0 ? 100.0 * static_cast<double>(report.cached_tokens) /
                                                      static_cast<double>(report.input_tokens)
                                                : 0.0;
  text += fmt::format("  {:.2f} requests/s, {:.1f} output tokens/s, {:.1f} tokens/s in all\n",
                      per_second(report, report.completed), per_second(report, report.output_tokens),
                      per_second(report, report.input_tokens + report.output_tokens));
  text += fmt::format("  {} prompt tokens, {:.1f} % of them cached; {} output tokens\n\n", report.input_tokens, cached,
                      report.output_tokens);
  text += fmt::format("{:<30}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "ms", "mean", "median", "p90", "p95", "p99");
  for (const Column& column : kColumns) {
    const Summary all = summary(report.*column.values);
    text += fmt::format("{:<30}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}\n", column.name, all.mean, all.median,
                        all.p90, all.p95, all.p99);
  }
  for (const auto& [message, count] : report.errors) text += fmt::format("\nfailed, {} times: {}\n", count, message);
  return text;
}

}  // namespace coluber::bench_serve

// SPDX-License-Identifier: Apache-2.0
#include "apps/server/trace.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/printable.h"

namespace coluber::server {
namespace {

constexpr size_t kTraceDigits = 32, kSpanDigits = 16;
constexpr size_t kParentBytes = 2 + 1 + kTraceDigits + 1 + kSpanDigits + 1 + 2;
// Of a span's flags in OTLP: it is known whether the parent is another process's, and it is.
constexpr int kHasIsRemote = 0x100, kIsRemote = 0x200;
constexpr int kSampled = 1;
constexpr int kStatusError = 2;

// Capitals are none: the standard has lower case alone.
int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return digit_of(c) >= 0; });
}

bool is_id(std::string_view text) { return is_hex(text) && text.find_first_not_of('0') != std::string_view::npos; }

Json any_value(const Json& value) {
  if (value.is_bool()) return Json::Object{{"boolValue", value}};
  // 64 bits do not fit into every reader's numbers.
  if (value.is_int()) return Json::Object{{"intValue", std::to_string(value.as_int())}};
  if (value.is_number()) return Json::Object{{"doubleValue", value}};
  if (value.is_string()) return Json::Object{{"stringValue", value}};
  Json::Array values;
  for (const Json& one : value.as_array()) values.push_back(any_value(one));
  return Json::Object{{"arrayValue", Json::Object{{"values", std::move(values)}}}};
}

Json::Array attributes_json(const Attributes& attributes) {
  Json::Array list;
  for (const auto& [key, value] : attributes) list.push_back(Json::Object{{"key", key}, {"value", any_value(value)}});
  return list;
}

Json span_json(const Trace& trace, const Span& span) {
  const bool is_first = span.kind == Span::Kind::kServer;
  Json json(Json::Object{{"traceId", trace.id}, {"spanId", span.id}});
  if (!trace.state.empty()) json.set("traceState", trace.state);
  if (!span.parent_id.empty()) json.set("parentSpanId", span.parent_id);
  json.set("flags", kSampled | kHasIsRemote | (is_first && trace.has_remote_parent ? kIsRemote : 0));
  json.set("name", span.name);
  json.set("kind", static_cast<int>(span.kind));
  json.set("startTimeUnixNano", std::to_string(span.begin_ns));
  json.set("endTimeUnixNano", std::to_string(span.end_ns));
  json.set("attributes", attributes_json(span.attributes));
  if (span.failed) json.set("status", Json::Object{{"code", kStatusError}});
  return json;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

std::string percent_decoded(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) { return at < text.size() ? digit_of(static_cast<char>(text[at] | 0x20)) : -1; };
    if (text[i] != '%' || digit(i + 1) < 0 || digit(i + 2) < 0) {
      plain += text[i];
      continue;
    }
    plain += static_cast<char>(digit(i + 1) << 4 | digit(i + 2));
    i += 2;
  }
  return plain;
}

}  // namespace

std::optional<TraceContext> parse_traceparent(std::string_view value) {
  if (value.size() < kParentBytes) return std::nullopt;
  const std::string_view version = value.substr(0, 2), trace = value.substr(3, kTraceDigits),
                         parent = value.substr(4 + kTraceDigits, kSpanDigits),
                         flags = value.substr(kParentBytes - 2, 2);
  for (const size_t dash : {size_t{2}, 3 + kTraceDigits, kParentBytes - 3})
    if (value[dash] != '-') return std::nullopt;
  if (!is_hex(version) || version == "ff" || !is_id(trace) || !is_id(parent) || !is_hex(flags)) return std::nullopt;
  // Later versions may say more behind another dash, the first one may not.
  if (value.size() > kParentBytes && (version == "00" || value[kParentBytes] != '-')) return std::nullopt;
  return TraceContext{std::string(trace), std::string(parent), (digit_of(flags[1]) & kSampled) != 0};
}

TraceIds::TraceIds() {
  std::random_device device;
  std::array<uint32_t, 8> seeds{};
  for (uint32_t& seed : seeds) seed = device();
  std::seed_seq sequence(seeds.begin(), seeds.end());
  random_.seed(sequence);
}

std::string TraceIds::digits() {
  uint64_t id = 0;
  while (id == 0) id = random_();
  return fmt::format("{:016x}", id);
}

Json otlp_json(const std::vector<Trace>& traces, const Attributes& resource) {
  Json::Array spans;
  for (const Trace& trace : traces)
    for (const Span& span : trace.spans) spans.push_back(span_json(trace, span));
  const Json scope(Json::Object{{"name", "coluber"}, {"version", COLUBER_VERSION}});
  Json::Object scoped{{"scope", scope}, {"spans", std::move(spans)}};
  Json::Object whole{{"resource", Json::Object{{"attributes", attributes_json(resource)}}},
                     {"scopeSpans", Json::Array{Json(std::move(scoped))}}};
  return Json::Object{{"resourceSpans", Json::Array{Json(std::move(whole))}}};
}

std::vector<std::pair<std::string, std::string>> parse_key_values(std::string_view text, std::string_view name) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view pair = trimmed(text.substr(at, comma - at));
    at = comma + 1;
    if (pair.empty()) continue;
    const size_t equals = pair.find('=');
    std::string key(trimmed(pair.substr(0, equals)));
    if (equals == std::string_view::npos || key.empty())
      throw make_error(ErrorCode::kInvalidArgument, "{} expects key=value,key=value, found '{}'", name,
                       printable(pair));
    std::string value = percent_decoded(trimmed(pair.substr(equals + 1)));
    const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
    if (std::any_of(key.begin(), key.end(), is_control) || std::any_of(value.begin(), value.end(), is_control))
      throw make_error(ErrorCode::kInvalidArgument, "{}: '{}' holds a control character; expected text", name,
                       printable(key));
    pairs.emplace_back(std::move(key), std::move(value));
  }
  return pairs;
}

}  // namespace coluber::server

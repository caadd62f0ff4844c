// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/chat_template.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "text/chat_template/interpreter.h"
#include "text/chat_template/parser.h"
#include "text/chat_template/python.h"

namespace coluber {

namespace {

using jinja::Fault;
using jinja::FaultKind;

constexpr int kMaxVariableDepth = 2 * kMaxJsonDepth;

std::string_view fault_type(FaultKind kind) {
  switch (kind) {
    case FaultKind::kSyntax:
      return "TemplateSyntaxError";
    case FaultKind::kRaised:
      return "TemplateError";
    case FaultKind::kUndefined:
      return "UndefinedError";
    case FaultKind::kType:
      return "TypeError";
    case FaultKind::kSecurity:
      return "SecurityError";
    case FaultKind::kLimit:
      return "LimitError";
  }
  return "TemplateError";
}

tl::unexpected<Failure> failed(const Fault& fault, const std::string& name, TemplateFailure* failure) {
  if (failure != nullptr) *failure = {std::string(fault_type(fault.kind)), fault.message, fault.line};
  std::string where = fault.line > 0 ? fmt::format("{}, line {}", name, fault.line) : name;
  if (fault.kind == FaultKind::kRaised)
    return fail(ErrorCode::kInvalidArgument, "{} (refused by the chat template {})", fault.message, where);
  return fail(ErrorCode::kInvalidArgument, "chat template {}: {}", where, fault.message);
}

jinja::Value string_value(const std::string& text, bool input, std::string_view path) {
  const size_t bad = jinja::first_invalid_utf8(text);
  if (bad != std::string::npos) {
    jinja::raise_type("the variable '{}' is not valid UTF-8: byte {} of a text is 0x{:02x}", path, bad,
                      static_cast<unsigned char>(text[bad]));
  }
  return jinja::constant_string(text, input);
}

jinja::Value to_value(jinja::Heap& heap, const Json& json, bool input, std::string_view path, int depth) {
  if (depth > kMaxVariableDepth)
    jinja::raise(FaultKind::kLimit, "the variable '{}' is nested deeper than {}", path, kMaxVariableDepth);
  heap.step();
  if (json.is_null()) return {};
  if (json.is_bool()) return jinja::Value(json.as_bool());
  if (json.is_int()) return jinja::Value(json.as_int());
  if (json.is_number()) return jinja::Value(json.as_double());
  if (json.is_string()) return string_value(json.as_string(), input, path);
  if (json.is_array()) {
    jinja::Values items;
    items.reserve(json.as_array().size());
    for (const Json& item : json.as_array()) items.push_back(to_value(heap, item, input, path, depth + 1));
    return heap.list(std::move(items));
  }
  jinja::Dict dict;
  for (const auto& [key, item] : json.as_object())
    dict.set(string_value(key, input, path), to_value(heap, item, input, path, depth + 1));
  return heap.dict(std::move(dict));
}

// The special tokens are the template's, all else may hold what a user typed.
bool is_input(std::string_view name) { return !name.ends_with("_token") && !name.ends_with("_tokens"); }

jinja::Text render_text(const jinja::Program& program, const Json& variables, const RenderOptions& options) {
  if (!variables.is_object()) jinja::raise_type("the variables must be an object, found {}", variables.type_name());
  const TemplateLimits& limits = options.limits;
  jinja::Heap heap(limits.max_steps, limits.max_memory_bytes, limits.max_output_bytes);
  jinja::Interpreter interpreter(program, &heap, options.now, limits.max_depth);
  interpreter.define("tools", {});
  interpreter.define("documents", {});
  interpreter.define("add_generation_prompt", jinja::Value(false));
  for (const auto& [name, value] : variables.as_object())
    interpreter.define(name, to_value(heap, value, is_input(name), name, 0));
  jinja::Text text = interpreter.run();
  return text;
}

}  // namespace

int64_t local_clock_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  return static_cast<int64_t>(timegm(&parts));
}

Result<int64_t> parse_clock(std::string_view text) {
  const std::string copy(text);
  std::tm parts{};
  int used = 0;
  const int date = std::sscanf(copy.c_str(), "%4d-%2d-%2d%n", &parts.tm_year, &parts.tm_mon, &parts.tm_mday, &used);
  bool valid = date == 3;
  if (valid && static_cast<size_t>(used) < copy.size()) {
    int more = 0;
    const char* rest = copy.c_str() + used + 1;
    valid = (copy[static_cast<size_t>(used)] == 'T' || copy[static_cast<size_t>(used)] == ' ') &&
            std::sscanf(rest, "%2d:%2d%n", &parts.tm_hour, &parts.tm_min, &more) == 2;
    int seconds = 0;
    if (valid && rest[more] == ':') {
      valid = std::sscanf(rest + more, ":%2d%n", &parts.tm_sec, &seconds) == 1;
      more += seconds;
    }
    if (valid && rest[more] == '.') {
      do ++more;
      while (rest[more] >= '0' && rest[more] <= '9');
    }
    valid = valid && rest[more] == '\0';
  }
  valid = valid && parts.tm_year > 0 && parts.tm_mon >= 1 && parts.tm_mon <= 12 && parts.tm_mday >= 1 &&
          parts.tm_mday <= 31 && parts.tm_hour >= 0 && parts.tm_hour < 24 && parts.tm_min >= 0 && parts.tm_min < 60 &&
          parts.tm_sec >= 0 && parts.tm_sec < 60;
  const int day = parts.tm_mday;
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  const int64_t clock = valid ? static_cast<int64_t>(timegm(&parts)) : 0;
  if (!valid || parts.tm_mday != day) {
    return fail(ErrorCode::kInvalidArgument,
                "'{}' is no time: expected a date and a time of day as in 2024-07-06T08:05:09", text);
  }
  return clock;
}

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::string name, const TemplateLimits& limits,
                                         TemplateFailure* failure) {
  try {
    if (static_cast<int64_t>(source.size()) > limits.max_source_bytes) {
      jinja::raise(FaultKind::kLimit, "the template has {} bytes, at most {} are allowed", source.size(),
                   limits.max_source_bytes);
    }
    const size_t bad = jinja::first_invalid_utf8(source);
    if (bad != std::string_view::npos) {
      const auto line = std::count(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(bad), '\n') + 1;
      throw Fault{FaultKind::kSyntax, static_cast<int>(line),
                  fmt::format("not valid UTF-8: byte {} is 0x{:02x}", bad, static_cast<unsigned char>(source[bad]))};
    }
    ChatTemplate made;
    made.program_ = jinja::parse_program(source);
    made.source_ = std::make_shared<const std::string>(source);
    made.name_ = std::move(name);
    return made;
  } catch (const Fault& fault) {
    return failed(fault, name, failure);
  }
}

Result<std::string> ChatTemplate::render(const Json& variables, const RenderOptions& options,
                                         TemplateFailure* failure) const {
  try {
    return std::move(render_text(*program_, variables, options).bytes);
  } catch (const Fault& fault) {
    return failed(fault, name_, failure);
  }
}

Result<std::vector<TemplateSegment>> ChatTemplate::render_segments(const Json& variables, const RenderOptions& options,
                                                                   TemplateFailure* failure) const {
  try {
    const jinja::Text text = render_text(*program_, variables, options);
    std::vector<TemplateSegment> segments;
    if (text.runs.empty() && !text.bytes.empty()) segments.push_back({text.bytes, true});
    size_t begin = 0;
    for (const jinja::Run& run : text.runs) {
      segments.push_back({text.bytes.substr(begin, run.end - begin), !run.input});
      begin = run.end;
    }
    return segments;
  } catch (const Fault& fault) {
    return failed(fault, name_, failure);
  }
}

Result<const ChatTemplate*> ChatTemplates::select(std::string_view name, bool has_tools) const {
  const auto find = [this](std::string_view wanted) -> const ChatTemplate* {
    const auto found =
        std::find_if(named.begin(), named.end(), [wanted](const auto& entry) { return entry.first == wanted; });
    return found == named.end() ? nullptr : &found->second;
  };
  const ChatTemplate* chosen = nullptr;
  if (!name.empty()) {
    chosen = find(name);
  } else {
    if (has_tools) chosen = find("tool_use");
    if (chosen == nullptr) chosen = find("default");
    if (chosen == nullptr && named.size() == 1) chosen = &named[0].second;
  }
  if (chosen != nullptr) return chosen;
  std::string names;
  for (const auto& [known, entry] : named) names += (names.empty() ? "" : ", ") + known;
  if (!name.empty())
    return fail(ErrorCode::kInvalidArgument, "the model has no chat template named '{}', it has: {}", name, names);
  return fail(ErrorCode::kInvalidArgument,
              "the model has several chat templates and none is called 'default', name one of: {}", names);
}

Result<const ChatTemplate*> ChatTemplates::prepare(const Json& variables, Json* all) const {
  const Json* tools = variables.find("tools");
  *all = special_tokens;
  if (variables.is_object()) {
    for (const auto& [name, value] : variables.as_object()) all->set(name, value);
  }
  return select({}, tools != nullptr && !tools->is_null());
}

Result<std::string> ChatTemplates::render(const Json& variables, const RenderOptions& options,
                                          TemplateFailure* failure) const {
  Json all;
  const auto chosen = prepare(variables, &all);
  if (!chosen) return tl::unexpected<Failure>(chosen.error());
  return (*chosen)->render(all, options, failure);
}

Result<ChatText> ChatTemplates::render_chat(const Json& variables, const RenderOptions& options) const {
  Json all;
  const auto chosen = prepare(variables, &all);
  if (!chosen) return tl::unexpected<Failure>(chosen.error());
  auto segments = (*chosen)->render_segments(all, options);
  if (!segments) return tl::unexpected(std::move(segments.error()));
  ChatText chat;
  for (const TemplateSegment& segment : *segments) {
    if (!segment.from_template) chat.typed.push_back({chat.text.size(), chat.text.size() + segment.text.size()});
    chat.text += segment.text;
  }
  return chat;
}

}  // namespace coluber

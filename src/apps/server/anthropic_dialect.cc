// SPDX-License-Identifier: Apache-2.0
//
// Anthropic's /v1/messages.
#include "apps/server/answer_blocks.h"
#include "apps/server/foreign_dialect.h"

namespace coluber::server {
namespace {

std::string_view type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

const FieldNames kNames = {
    {"stop", "stop_sequences"}, {"response_format", "output_config"}, {"reasoning_effort", "output_config.effort"}};

}  // namespace

Json anthropic_error(const ApiError& given) {
  const ApiError error = renamed(given, kNames);
  return Json(Json::Object{
      {"type", "error"},
      {"error", Json::Object{{"type", type_of(error.status)}, {"message", error.message}, {"param", error.param}}}});
}

namespace {

// ---- requests --------------------------------------------------------------------------------------------------

Json call_of(const Json& block) {
  const Json* id = block.find("id");
  const Json* name = block.find("name");
  const Json* input = block.find("input");
  return Json(
      Json::Object{{"id", id != nullptr ? *id : Json()},
                   {"type", "function"},
                   {"function", Json::Object{{"name", name != nullptr ? *name : Json()},
                                             {"arguments", input != nullptr ? input->dump() : std::string("{}")}}}});
}

// One message of theirs is one of ours, with the results of tools as messages of their own before it.
class MessageReader {
 public:
  explicit MessageReader(Json::Array& messages) : messages_(messages) {}

  // What is wrong with the message, or nothing.
  std::string read(const Json& message) {
    const Json* role = message.find("role");
    const Json* content = message.find("content");
    if (role == nullptr || !role->is_string() || content == nullptr) return "a 'role' and a 'content'";
    if (role->as_string() != "user" && role->as_string() != "assistant") return "the role 'user' or 'assistant'";
    text_.clear();
    reasoning_.clear();
    calls_.clear();
    const Json one(Json::Array{Json(Json::Object{{"type", "text"}, {"text", *content}})});
    const Json& blocks = content->is_string() ? one : *content;
    if (!blocks.is_array()) return "a 'content' that is a text or a list of blocks";
    for (const Json& block : blocks.as_array())
      if (!take(block)) return "blocks of type text, tool_use, tool_result or thinking; others are not supported";
    Json made(Json::Object{{"role", *role}, {"content", text_}});
    if (!reasoning_.empty()) made.set("reasoning_content", reasoning_);
    if (!calls_.empty()) made.set("tool_calls", calls_);
    if (!text_.empty() || !calls_.empty() || !has_results_) messages_.push_back(std::move(made));
    has_results_ = false;
    return {};
  }

 private:
  bool take(const Json& block) {
    const Json* type = block.find("type");
    if (type == nullptr || !type->is_string()) return false;
    const std::string& kind = type->as_string();
    const auto add = [&block](std::string_view name, std::string& to) {
      const Json* value = block.find(name);
      if (value == nullptr || !value->is_string()) return false;
      to += (to.empty() ? "" : "\n") + value->as_string();
      return true;
    };
    if (kind == "text") return add("text", text_);
    if (kind == "thinking") return add("thinking", reasoning_);
    if (kind == "tool_use") {
      calls_.push_back(call_of(block));
      return true;
    }
    if (kind != "tool_result") return false;
    const Json* id = block.find("tool_use_id");
    const Json* content = block.find("content");
    std::string text;
    if (content != nullptr && !read_text_parts(*content, {"text"}, &text)) return false;
    messages_.push_back(
        Json(Json::Object{{"role", "tool"}, {"tool_call_id", id != nullptr ? *id : Json()}, {"content", text}}));
    has_results_ = true;
    return true;
  }

  Json::Array& messages_;
  std::string text_, reasoning_;
  Json::Array calls_;
  bool has_results_ = false;
};

void read_messages(JsonFields& fields, Json& body) {
  Json::Array messages;
  if (const Json* system = fields.find("system", R"({"type": ["string", "array", "null"]})")) {
    std::string text;
    if (!read_text_parts(*system, {"text"}, &text))
      return fields.wrong("system", "a text or a list of text blocks", *system);
    messages.push_back(Json(Json::Object{{"role", "system"}, {"content", text}}));
  }
  const Json* given = fields.find("messages", R"({"type": "array", "minItems": 1, "items": {"type": "object"}})");
  if (given == nullptr || !given->is_array() || given->as_array().empty())
    return fields.problem("messages", "'messages' must be a list of {\"role\", \"content\"} with at least one");
  MessageReader reader(messages);
  for (size_t i = 0; i < given->as_array().size(); ++i)
    if (const std::string expected = reader.read(given->as_array()[i]); !expected.empty())
      return fields.problem(fmt::format("messages[{}]", i), fmt::format("'messages[{}]' must have {}", i, expected));
  body.set("messages", std::move(messages));
}

void read_tools(JsonFields& fields, Json& body) {
  if (const Json* tools = fields.find("tools", R"({"type": ["array", "null"], "items": {"type": "object"}})")) {
    if (!tools->is_array()) return fields.wrong("tools", "a list of tools", *tools);
    Json::Array made;
    for (const Json& tool : tools->as_array()) {
      const Json* type = tool.find("type");
      const Json* schema = tool.find("input_schema");
      if (schema == nullptr || (type != nullptr && !(*type == Json("custom"))))
        return fields.problem("tools",
                              "'tools' must have a 'name' and an 'input_schema'; there are no tools of the server's");
      Json function(Json::Object{{"name", tool.find("name") != nullptr ? *tool.find("name") : Json()}});
      if (const Json* text = tool.find("description")) function.set("description", *text);
      function.set("parameters", *schema);
      made.push_back(Json(Json::Object{{"type", "function"}, {"function", std::move(function)}}));
    }
    if (!made.empty()) body.set("tools", std::move(made));
  }
  const Json* choice = fields.find("tool_choice", R"({"type": ["object", "null"]})");
  if (choice == nullptr) return;
  const Json* type = choice->find("type");
  const std::string kind = type != nullptr && type->is_string() ? type->as_string() : std::string();
  if (kind == "auto" || kind == "none") {
    body.set("tool_choice", kind);
  } else if (kind == "any") {
    body.set("tool_choice", "required");
  } else if (kind == "tool" && choice->find("name") != nullptr) {
    body.set("tool_choice",
             Json::Object{{"type", "function"}, {"function", Json::Object{{"name", *choice->find("name")}}}});
  } else {
    return fields.problem("tool_choice", "'tool_choice' must be of type auto, any, none, or tool with a 'name'");
  }
  if (const Json* alone = choice->find("disable_parallel_tool_use"); alone != nullptr && *alone == Json(true))
    body.set("parallel_tool_calls", false);
}

void read_thinking(JsonFields& fields, Json& body) {
  const Json* thinking = fields.find("thinking", R"({"type": ["object", "null"]})");
  if (thinking == nullptr) return;
  const Json* type = thinking->find("type");
  const bool on = type != nullptr && (*type == Json("enabled") || *type == Json("adaptive"));
  if (!on && (type == nullptr || !(*type == Json("disabled"))))
    return fields.problem("thinking", "'thinking' must be of type enabled, adaptive or disabled");
  // The budget is the model's own business: templates know no more than on and off.
  body.set("chat_template_kwargs", Json::Object{{"enable_thinking", on}});
}

void read_output(JsonFields& fields, Json& body) {
  fields.object("output_config", [&body](JsonFields& inner) {
    inner.pass_on("effort", body, "reasoning_effort");
    const Json* format = inner.find("format", R"({"type": ["object", "null"]})");
    if (format == nullptr) return;
    const Json* type = format->find("type");
    const Json* schema = format->find("schema");
    if (schema == nullptr || type == nullptr || !(*type == Json("json_schema")))
      return inner.problem("format", "'format' must be of type json_schema with a 'schema'");
    body.set("response_format", Json::Object{{"type", "json_schema"},
                                             {"json_schema", Json::Object{{"name", "format"}, {"schema", *schema}}}});
  });
}

// What the model is asked with, whoever asks.
void read_conversation(JsonFields& fields, Json& body) {
  fields.pass_on("model", body);
  read_messages(fields, body);
  read_tools(fields, body);
  read_thinking(fields, body);
  fields.note("cache_control");
  read_output(fields, body);
  fields.refuse("speed", "there is one speed", Json("standard"));
  for (const std::string_view name : {"container", "context_management", "mcp_servers", "inference_geo"})
    fields.refuse(name, "it belongs to services around the model");
}

// ---- answers ---------------------------------------------------------------------------------------------------

class AnthropicDialect : public Dialect, private AnswerBlocks::Listener {
 public:
  bool is_chat() const noexcept override { return true; }
  std::string_view id_prefix() const noexcept override { return "msg_"; }

  Result<Json> translate(Json given, FieldList* list) override {
    JsonFields fields(given, list);
    Json body;
    read_conversation(fields, body);
    for (const std::string_view same :
         {"max_tokens", "temperature", "top_p", "top_k", "stream", "metadata", "session_id", "cache_salt", "priority"})
      fields.pass_on(same, body);
    if (!fields.has("max_tokens"))
      fields.problem("max_tokens", "'max_tokens' is missing: the most tokens of the answer");
    read_stops(fields, body);
    fields.note("service_tier");
    if (auto failure = fields.finish()) return tl::unexpected(std::move(*failure));
    return body;
  }

  Json whole(const AnswerHead& head, const CompletionRequest& request, const std::vector<Choice>& choices,
             const Usage& usage) override {
    const Json answer = whole_answer(head, request, choices, usage);
    const Json& choice = answer.at("choices").as_array().front();
    blocks_.take(without_stop(choice.at("message"), choice.at("finish_reason")), *this);
    blocks_.end(*this);
    Json::Array content;
    for (const AnswerBlock& block : blocks_.all()) content.push_back(whole_block(block));
    Json message = message_json(head, std::move(content), usage);
    message.set("stop_reason", reason_of(choice.at("finish_reason")));
    message.set("stop_sequence", stopped_by_);
    message.set("coluber", cache_json(usage));
    return message;
  }

  std::string begin(const AnswerHead& head, const CompletionRequest& request) override {
    Usage usage;
    for (const auto& prompt : request.prompts) usage.prompt_tokens += request.held_tokens + std::ssize(prompt);
    return named_event("message_start",
                       Json(Json::Object{{"type", "message_start"}, {"message", message_json(head, {}, usage)}}));
  }
  std::string chunk(const AnswerHead& head, const CompletionRequest& request, const Choice& added,
                    const Usage&) override {
    const Json chunk = chunk_answer(head, request, added, added.is_first);
    const Json& choice = chunk.at("choices").as_array().front();
    blocks_.take(without_stop(choice.at("delta"), choice.at("finish_reason")), *this);
    if (!choice.at("finish_reason").is_null()) reason_ = choice.at("finish_reason");
    return std::exchange(events_, {});
  }
  std::string end(const AnswerHead&, const CompletionRequest&, const Usage& usage) override {
    blocks_.end(*this);
    std::string events = std::exchange(events_, {});
    events += named_event(
        "message_delta",
        Json(Json::Object{{"type", "message_delta"},
                          {"delta", Json::Object{{"stop_reason", reason_of(reason_)}, {"stop_sequence", stopped_by_}}},
                          {"usage", usage_of(usage)},
                          {"coluber", cache_json(usage)}}));
    return events + named_event("message_stop", Json(Json::Object{{"type", "message_stop"}}));
  }

  Json error(const ApiError& error) const override { return anthropic_error(error); }
  std::string error_end(const ApiError& error) const override { return named_event("error", anthropic_error(error)); }

 private:
  // Which of the texts an answer stopped at is told here: it is asked for with the answer, and taken off its end.
  void read_stops(JsonFields& fields, Json& body) {
    fields.pass_on("stop_sequences", body, "stop");
    const Json* stops = body.find("stop");
    if (stops == nullptr || !stops->is_array() || stops->as_array().empty()) return;
    for (const Json& stop : stops->as_array())
      if (stop.is_string()) stops_.push_back(stop.as_string());
    body.set("include_stop_str_in_output", true);
  }
  Json without_stop(Json message, const Json& finish_reason) {
    const Json* content = message.find("content");
    if (!(finish_reason == Json("stop")) || content == nullptr || !content->is_string()) return message;
    for (const std::string& stop : stops_) {
      const std::string& text = content->as_string();
      if (!text.ends_with(stop)) continue;
      stopped_by_ = Json(stop);
      message.set("content", text.substr(0, text.size() - stop.size()));
      break;
    }
    return message;
  }
  Json reason_of(const Json& finish_reason) const {
    if (!stopped_by_.is_null()) return Json("stop_sequence");
    if (finish_reason == Json("length")) return Json("max_tokens");
    if (finish_reason == Json("tool_calls")) return Json("tool_use");
    return Json("end_turn");
  }

  static Json usage_of(const Usage& usage) {
    return Json(Json::Object{{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
                             {"cache_creation_input_tokens", 0},
                             {"cache_read_input_tokens", usage.cached_tokens},
                             {"output_tokens", usage.completion_tokens}});
  }
  static Json message_json(const AnswerHead& head, Json::Array content, const Usage& usage) {
    return Json(Json::Object{{"id", head.id},
                             {"type", "message"},
                             {"role", "assistant"},
                             {"model", head.model},
                             {"content", std::move(content)},
                             {"stop_reason", Json()},
                             {"stop_sequence", Json()},
                             {"usage", usage_of(usage)}});
  }
  static Json whole_block(const AnswerBlock& block) {
    if (block.kind == AnswerBlock::Kind::kText) return Json(Json::Object{{"type", "text"}, {"text", block.text}});
    if (block.kind == AnswerBlock::Kind::kReasoning)
      return Json(Json::Object{{"type", "thinking"}, {"thinking", block.text}, {"signature", ""}});
    const Result<Json> input = parse_json(block.text.empty() ? "{}" : block.text, "arguments");
    return Json(Json::Object{{"type", "tool_use"},
                             {"id", block.call_id},
                             {"name", block.name},
                             {"input", input ? *input : Json(Json::Object{})}});
  }

  void event(std::string_view name, size_t index, std::string field, Json value) {
    Json data(Json::Object{{"type", name}, {"index", static_cast<int64_t>(index)}});
    if (!field.empty()) data.set(std::move(field), std::move(value));
    events_ += named_event(name, data);
  }
  void block_begins(const AnswerBlock& block, size_t index) override {
    AnswerBlock empty = block;
    empty.text.clear();
    event("content_block_start", index, "content_block", whole_block(empty));
  }
  void block_grows(const AnswerBlock& block, size_t index, const std::string& by) override {
    Json delta;
    if (block.kind == AnswerBlock::Kind::kText)
      delta = Json(Json::Object{{"type", "text_delta"}, {"text", by}});
    else if (block.kind == AnswerBlock::Kind::kReasoning)
      delta = Json(Json::Object{{"type", "thinking_delta"}, {"thinking", by}});
    else
      delta = Json(Json::Object{{"type", "input_json_delta"}, {"partial_json", by}});
    event("content_block_delta", index, "delta", std::move(delta));
  }
  void block_ends(const AnswerBlock&, size_t index) override { event("content_block_stop", index, {}, {}); }

  AnswerBlocks blocks_;
  std::vector<std::string> stops_;
  Json stopped_by_, reason_;
  std::string events_;
};

}  // namespace

Result<Json> anthropic_conversation(const Json& given, FieldList* list) {
  JsonFields fields(given, list);
  Json body;
  read_conversation(fields, body);
  if (auto failure = fields.finish()) return tl::unexpected(std::move(*failure));
  return body;
}

std::unique_ptr<Dialect> anthropic_messages() { return std::make_unique<AnthropicDialect>(); }

}  // namespace coluber::server

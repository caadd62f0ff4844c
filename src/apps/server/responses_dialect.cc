// SPDX-License-Identifier: Apache-2.0
//
// OpenAI's /v1/responses. What an answer leaves behind is a session under the answer's id; `previous_response_id` goes
// on from a fork of it, so that one answer can be followed by several.
#include "apps/server/answer_blocks.h"
#include "apps/server/foreign_dialect.h"

namespace coluber::server {
namespace {

const FieldNames kNames = {{"messages", "input"},
                           {"max_completion_tokens", "max_output_tokens"},
                           {"response_format", "text"},
                           {"reasoning_effort", "reasoning.effort"},
                           {"session_id", "previous_response_id"}};
constexpr size_t kMaxIdBytes = 256;

// ---- requests --------------------------------------------------------------------------------------------------

// Items of the input as messages; calls and thoughts belong to the assistant's message that they stand beside.
class InputReader {
 public:
  explicit InputReader(Json::Array& messages) : messages_(messages) {}

  std::string read(const Json& item) {
    const Json* type = item.find("type");
    const std::string kind = type != nullptr && type->is_string() ? type->as_string() : "message";
    if (kind == "message") return read_message(item);
    if (kind == "function_call") return read_call(item);
    if (kind == "function_call_output") return read_result(item);
    if (kind == "reasoning") return {};  // templates leave earlier thoughts out
    return "items of type message, function_call, function_call_output or reasoning; others are not supported";
  }

 private:
  static Json or_null(const Json* value) { return value != nullptr ? *value : Json(); }

  std::string read_message(const Json& item) {
    const Json* role = item.find("role");
    const Json* content = item.find("content");
    std::string text;
    if (role == nullptr || !role->is_string() || content == nullptr ||
        !read_text_parts(*content, {"input_text", "output_text", "text"}, &text))
      return "a 'role' and a 'content', which is a text or a list of parts of type input_text or output_text";
    // Templates know no developers.
    const std::string name = role->as_string() == "developer" ? "system" : role->as_string();
    messages_.push_back(Json(Json::Object{{"role", name}, {"content", text}}));
    return {};
  }
  std::string read_call(const Json& item) {
    Json call(Json::Object{{"id", or_null(item.find("call_id"))},
                           {"type", "function"},
                           {"function", Json::Object{{"name", or_null(item.find("name"))},
                                                     {"arguments", or_null(item.find("arguments"))}}}});
    const bool joins = !messages_.empty() && messages_.back().at("role") == Json("assistant");
    if (!joins) messages_.push_back(Json(Json::Object{{"role", "assistant"}, {"content", ""}}));
    Json& message = messages_.back();
    Json calls = message.find("tool_calls") != nullptr ? message.at("tool_calls") : Json(Json::Array{});
    calls.push_back(std::move(call));
    message.set("tool_calls", std::move(calls));
    return {};
  }
  std::string read_result(const Json& item) {
    const Json* output = item.find("output");
    std::string text;
    if (output == nullptr || !read_text_parts(*output, {"input_text", "output_text", "text"}, &text))
      return "an 'output', which is a text or a list of parts of text";
    messages_.push_back(
        Json(Json::Object{{"role", "tool"}, {"tool_call_id", or_null(item.find("call_id"))}, {"content", text}}));
    return {};
  }

  Json::Array& messages_;
};

void read_input(JsonFields& fields, Json::Array& messages) {
  const Json* input = fields.find("input", R"({"type": ["string", "array", "null"]})");
  if (input == nullptr) return fields.problem("input", "'input' is missing: a text, or a list of items");
  if (input->is_string()) {
    messages.push_back(Json(Json::Object{{"role", "user"}, {"content", *input}}));
    return;
  }
  if (!input->is_array() || input->as_array().empty())
    return fields.wrong("input", "a text or a list of items", *input);
  InputReader reader(messages);
  for (size_t i = 0; i < input->as_array().size(); ++i)
    if (const std::string expected = reader.read(input->as_array()[i]); !expected.empty())
      return fields.problem(fmt::format("input[{}]", i), fmt::format("'input[{}]' must have {}", i, expected));
}

// {"type": "function", "name", "parameters", ...}, without the object that chat puts around it.
void read_tools(JsonFields& fields, Json& body) {
  const Json* tools = fields.find("tools", R"({"type": ["array", "null"], "items": {"type": "object"}})");
  if (tools != nullptr && !tools->is_array()) return fields.wrong("tools", "a list of tools", *tools);
  Json::Array made;
  for (const Json& tool : tools != nullptr ? tools->as_array() : Json::Array{}) {
    const Json* type = tool.find("type");
    if (type == nullptr || !(*type == Json("function")))
      return fields.problem("tools", "'tools' must be of type function; there are no tools of the server's",
                            ErrorCode::kUnsupported);
    Json function;
    for (const Json::Member& member : tool.as_object())
      if (member.first != "type") function.set(member.first, member.second);
    made.push_back(Json(Json::Object{{"type", "function"}, {"function", std::move(function)}}));
  }
  if (!made.empty()) body.set("tools", std::move(made));
  const Json* choice = fields.find("tool_choice", R"({"type": ["string", "object", "null"]})");
  if (choice == nullptr) return;
  const Json* name = choice->find("name");
  body.set("tool_choice", name == nullptr
                              ? *choice
                              : Json(Json::Object{{"type", "function"}, {"function", Json::Object{{"name", *name}}}}));
}

void read_text_format(JsonFields& fields, Json& body) {
  fields.object("text", [&body](JsonFields& inner) {
    inner.refuse("verbosity", "the model says as much as it does", Json("medium"));
    const Json* format = inner.find("format", R"({"type": ["object", "null"]})");
    if (format == nullptr) return;
    const Json* type = format->find("type");
    if (type == nullptr || !(*type == Json("json_schema"))) return void(body.set("response_format", *format));
    Json schema;
    for (const Json::Member& member : format->as_object())
      if (member.first != "type") schema.set(member.first, member.second);
    body.set("response_format", Json::Object{{"type", "json_schema"}, {"json_schema", std::move(schema)}});
  });
}

void read_include(JsonFields& fields, Json& body) {
  const Json* include = fields.find("include", R"({"type": ["array", "null"]})");
  if (include == nullptr) return;
  if (!include->is_array()) return fields.wrong("include", "a list", *include);
  for (const Json& what : include->as_array()) {
    if (!(what == Json("message.output_text.logprobs")))
      return fields.problem("include", "'include' can be message.output_text.logprobs; nothing else is there",
                            ErrorCode::kUnsupported);
    body.set("logprobs", true);
  }
}

void read_reasoning(JsonFields& fields, Json& body) {
  fields.object("reasoning", [&body](JsonFields& inner) {
    inner.pass_on("effort", body, "reasoning_effort");
    for (const std::string_view name : {"summary", "generate_summary"}) inner.refuse(name, "thoughts are told whole");
  });
}

void refuse_others(JsonFields& fields) {
  fields.refuse("background", "an answer is made while its client waits", Json(false));
  fields.refuse("conversation", "go on with 'previous_response_id'");
  fields.refuse("prompt", "there are no stored prompts");
  fields.refuse("max_tool_calls", "the client calls the tools");
  fields.refuse("truncation", "conversations are never cut", Json("disabled"));
  fields.refuse("service_tier", "there is one tier", Json("auto"));
  for (const std::string_view told : {"user", "safety_identifier", "prompt_cache_key"}) fields.note(told);
}

// ---- answers ---------------------------------------------------------------------------------------------------

class ResponsesDialect : public Dialect, private AnswerBlocks::Listener {
 public:
  bool is_chat() const noexcept override { return true; }
  std::string_view id_prefix() const noexcept override { return "resp_"; }

  Result<Json> translate(Json given, FieldList* list) override {
    given_ = std::move(given);
    JsonFields fields(given_, list);
    Json body;
    for (const std::string_view same :
         {"model", "temperature", "top_p", "stream", "top_logprobs", "parallel_tool_calls", "metadata", "cache_salt",
          "priority", "seed", "top_k", "min_p", "ignore_eos"})
      fields.pass_on(same, body);
    fields.pass_on("max_output_tokens", body, "max_completion_tokens");
    fields.object("stream_options", [](JsonFields& inner) {
      inner.refuse("include_obfuscation", "answers are not padded", Json(false));
    });
    Json::Array messages;
    std::string instructions;
    if (fields.text("instructions", &instructions, size_t{1} << 30)) {
      instructions_ = Json(instructions);
      messages.push_back(Json(Json::Object{{"role", "system"}, {"content", instructions}}));
    }
    const bool goes_on = fields.text("previous_response_id", &previous_, kMaxIdBytes);
    fields.boolean("store", &stores_);
    if (goes_on) messages.clear();  // the session has them
    read_input(fields, messages);
    body.set("messages", std::move(messages));
    read_tools(fields, body);
    read_text_format(fields, body);
    read_include(fields, body);
    read_reasoning(fields, body);
    refuse_others(fields);
    if (auto failure = fields.finish()) return tl::unexpected(std::move(*failure));
    return body;
  }

  ApiResult<SessionUse> session_use(Json&) override {
    if (!previous_.empty()) return SessionUse{SessionUse::Kind::kFork, previous_};
    return SessionUse{stores_ ? SessionUse::Kind::kNew : SessionUse::Kind::kNone, {}};
  }
  bool keeps_session() const noexcept override { return stores_; }
  // They stand at the beginning of what the session holds, where they cannot be exchanged.
  std::optional<Failure> check_note(const Json& note) override {
    for (const std::string_view name : {"instructions", "tools"}) {
      const Json* now = given_.find(name);
      const Json* then = note.find(name);
      if (previous_.empty() || now == nullptr || now->is_null() || (then != nullptr && *now == *then)) continue;
      return Failure{
          ErrorCode::kUnsupported,
          fmt::format("'{}' must be what the conversation of 'previous_response_id' began with, or left out; "
                      "others need a new conversation",
                      name),
          std::string(name)};
    }
    if (const Json* began = note.find("instructions"); began != nullptr && !previous_.empty()) instructions_ = *began;
    if (const Json* began = note.find("tools"); began != nullptr && !previous_.empty()) tools_ = *began;
    return std::nullopt;
  }
  void write_note(Json& note) const override {
    note = Json(Json::Object{{"instructions", instructions_}, {"tools", tools()}, {"response", last_}});
  }

  Json whole(const AnswerHead& head, const CompletionRequest& request, const std::vector<Choice>& choices,
             const Usage& usage) override {
    const Json answer = whole_answer(head, request, choices, usage);
    const Json& choice = answer.at("choices").as_array().front();
    blocks_.take(choice.at("message"), *this);
    blocks_.end(*this);
    take_logprobs(choice);
    finish_reason_ = choice.at("finish_reason");
    return last_ = response(head, request, &usage);
  }

  std::string begin(const AnswerHead& head, const CompletionRequest& request) override {
    id_ = head.id;
    const Json made = response(head, request, nullptr);
    event("response.created", Json(Json::Object{{"response", made}}));
    event("response.in_progress", Json(Json::Object{{"response", made}}));
    return std::exchange(events_, {});
  }
  std::string chunk(const AnswerHead& head, const CompletionRequest& request, const Choice& added,
                    const Usage&) override {
    const Json chunk = chunk_answer(head, request, added, added.is_first);
    const Json& choice = chunk.at("choices").as_array().front();
    take_logprobs(choice);
    blocks_.take(choice.at("delta"), *this);
    if (!choice.at("finish_reason").is_null()) finish_reason_ = choice.at("finish_reason");
    return std::exchange(events_, {});
  }
  std::string end(const AnswerHead& head, const CompletionRequest& request, const Usage& usage) override {
    blocks_.end(*this);
    last_ = response(head, request, &usage);
    event(is_cut() ? "response.incomplete" : "response.completed", Json(Json::Object{{"response", last_}}));
    return std::exchange(events_, {});
  }

  Json error(const ApiError& error) const override { return renamed(error, kNames).json(); }
  std::string error_end(const ApiError& error) const override {
    Json data = Json(Json::Object{{"type", "error"}, {"sequence_number", sequence_}});
    const Json told = error.json();
    for (const Json::Member& member : told.at("error").as_object())
      if (member.first != "type") data.set(member.first, member.second);
    return named_event("error", data);
  }

 private:
  bool is_cut() const { return finish_reason_ == Json("length"); }
  Json given(std::string_view name, Json otherwise) const {
    const Json* value = given_.find(name);
    return value != nullptr && !value->is_null() ? *value : otherwise;
  }
  Json tools() const { return tools_.is_null() ? given("tools", Json(Json::Array{})) : tools_; }

  // Before the end (no usage) it is what is known of it.
  Json response(const AnswerHead& head, const CompletionRequest& request, const Usage* usage) const {
    const char* status = usage == nullptr ? "in_progress" : is_cut() ? "incomplete" : "completed";
    Json::Array output;
    if (usage != nullptr)
      for (size_t i = 0; i < blocks_.all().size(); ++i)
        output.push_back(item(head.id, blocks_.all()[i], i, i + 1 == blocks_.all().size() ? status : "completed"));
    const SamplingParams& sampling = request.sampling;
    Json json(
        Json::Object{{"id", head.id},
                     {"object", "response"},
                     {"created_at", head.created},
                     {"status", status},
                     {"background", false},
                     {"error", Json()},
                     {"incomplete_details",
                      usage != nullptr && is_cut() ? Json(Json::Object{{"reason", "max_output_tokens"}}) : Json()},
                     {"instructions", instructions_},
                     {"max_output_tokens", given("max_output_tokens", {})},
                     {"model", head.model},
                     {"output", std::move(output)},
                     {"parallel_tool_calls", given("parallel_tool_calls", true)},
                     {"previous_response_id", previous_.empty() ? Json() : Json(previous_)},
                     {"reasoning", given("reasoning", Json(Json::Object{{"effort", Json()}, {"summary", Json()}}))},
                     {"store", stores_},
                     {"temperature", static_cast<double>(sampling.temperature)},
                     {"text", given("text", Json(Json::Object{{"format", Json::Object{{"type", "text"}}}}))},
                     {"tool_choice", given("tool_choice", "auto")},
                     {"tools", tools()},
                     {"top_p", static_cast<double>(sampling.top_p)},
                     {"truncation", "disabled"},
                     {"user", given("user", {})},
                     {"metadata", given("metadata", Json(Json::Object{}))}});
    json.set("usage", usage != nullptr ? usage_of(head, *usage) : Json());
    if (usage != nullptr) json.set("coluber", cache_json(*usage));
    return json;
  }
  Json usage_of(const AnswerHead& head, const Usage& usage) const {
    int64_t reasoning = 0;
    for (const AnswerBlock& block : blocks_.all())
      if (block.kind == AnswerBlock::Kind::kReasoning && head.tokenizer != nullptr)
        if (const auto ids = head.tokenizer->encode(block.text, false)) reasoning += std::ssize(*ids);
    return Json(Json::Object{{"input_tokens", usage.prompt_tokens},
                             {"input_tokens_details", Json::Object{{"cached_tokens", usage.cached_tokens}}},
                             {"output_tokens", usage.completion_tokens},
                             {"output_tokens_details", Json::Object{{"reasoning_tokens", reasoning}}},
                             {"total_tokens", usage.prompt_tokens + usage.completion_tokens}});
  }

  static std::string item_id(const std::string& response, const AnswerBlock& block, size_t index) {
    const char* kind = block.kind == AnswerBlock::Kind::kText   ? "msg"
                       : block.kind == AnswerBlock::Kind::kCall ? "fc"
                                                                : "rs";
    return fmt::format("{}_{}_{}", kind, response, index);
  }
  Json part(const AnswerBlock& block) const {
    if (block.kind == AnswerBlock::Kind::kReasoning)
      return Json(Json::Object{{"type", "reasoning_text"}, {"text", block.text}});
    return Json(Json::Object{
        {"type", "output_text"}, {"text", block.text}, {"annotations", Json(Json::Array{})}, {"logprobs", logprobs_}});
  }
  Json item(const std::string& response, const AnswerBlock& block, size_t index, const char* status) const {
    const std::string id = item_id(response, block, index);
    if (block.kind == AnswerBlock::Kind::kCall)
      return Json(Json::Object{{"id", id},
                               {"type", "function_call"},
                               {"status", status},
                               {"call_id", block.call_id},
                               {"name", block.name},
                               {"arguments", block.text}});
    Json::Array content;
    if (!block.text.empty()) content.push_back(part(block));
    if (block.kind == AnswerBlock::Kind::kReasoning)
      return Json(Json::Object{
          {"id", id}, {"type", "reasoning"}, {"summary", Json(Json::Array{})}, {"content", std::move(content)}});
    return Json(Json::Object{
        {"id", id}, {"type", "message"}, {"status", status}, {"role", "assistant"}, {"content", std::move(content)}});
  }

  void take_logprobs(const Json& choice) {
    new_logprobs_.clear();
    const Json* logprobs = choice.find("logprobs");
    const Json* content = logprobs != nullptr ? logprobs->find("content") : nullptr;
    if (content == nullptr || !content->is_array()) return;
    new_logprobs_ = content->as_array();
    logprobs_.insert(logprobs_.end(), new_logprobs_.begin(), new_logprobs_.end());
  }

  void event(std::string_view name, Json data) {
    Json whole(Json::Object{{"type", name}, {"sequence_number", sequence_++}});
    for (Json::Member& member : data.as_object()) whole.set(member.first, std::move(member.second));
    events_ += named_event(name, whole);
  }
  Json at(const AnswerBlock& block, size_t index) const {
    return Json(Json::Object{{"item_id", item_id(id_, block, index)}, {"output_index", static_cast<int64_t>(index)}});
  }
  void block_begins(const AnswerBlock& block, size_t index) override {
    AnswerBlock empty = block;
    empty.text.clear();
    event("response.output_item.added", Json(Json::Object{{"output_index", static_cast<int64_t>(index)},
                                                          {"item", item(id_, empty, index, "in_progress")}}));
    if (block.kind == AnswerBlock::Kind::kCall) return;
    Json data = at(block, index);
    data.set("content_index", 0);
    data.set("part", part(empty));
    event("response.content_part.added", std::move(data));
  }
  static std::string_view stem(const AnswerBlock& block) {
    if (block.kind == AnswerBlock::Kind::kCall) return "response.function_call_arguments";
    return block.kind == AnswerBlock::Kind::kText ? "response.output_text" : "response.reasoning_text";
  }
  void block_grows(const AnswerBlock& block, size_t index, const std::string& by) override {
    Json data = at(block, index);
    if (block.kind != AnswerBlock::Kind::kCall) data.set("content_index", 0);
    data.set("delta", by);
    if (block.kind == AnswerBlock::Kind::kText) data.set("logprobs", std::exchange(new_logprobs_, {}));
    event(std::string(stem(block)) + ".delta", std::move(data));
  }
  void block_ends(const AnswerBlock& block, size_t index) override {
    Json data = at(block, index);
    if (block.kind == AnswerBlock::Kind::kCall) {
      data.set("name", block.name);
      data.set("arguments", block.text);
      event(std::string(stem(block)) + ".done", std::move(data));
    } else {
      data.set("content_index", 0);
      Json whole = data;
      whole.set("text", block.text);
      if (block.kind == AnswerBlock::Kind::kText) whole.set("logprobs", logprobs_);
      event(std::string(stem(block)) + ".done", std::move(whole));
      data.set("part", part(block));
      event("response.content_part.done", std::move(data));
    }
    const char* status = is_cut() ? "incomplete" : "completed";
    event("response.output_item.done",
          Json(Json::Object{{"output_index", static_cast<int64_t>(index)}, {"item", item(id_, block, index, status)}}));
  }

  Json given_, instructions_, tools_;
  std::string previous_, id_;
  bool stores_ = true;
  AnswerBlocks blocks_;
  Json finish_reason_, last_;
  Json::Array logprobs_, new_logprobs_;
  int64_t sequence_ = 0;
  std::string events_;
};

}  // namespace

std::unique_ptr<Dialect> openai_responses() { return std::make_unique<ResponsesDialect>(); }

}  // namespace coluber::server

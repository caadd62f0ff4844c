// SPDX-License-Identifier: Apache-2.0
//
// Ollama's /api/chat and /api/generate: streams are lines of JSON, and the default.
#include <chrono>
#include <ctime>

#include "apps/server/answer_blocks.h"
#include "apps/server/foreign_dialect.h"

namespace coluber::server {
namespace {

using Clock = std::chrono::steady_clock;

const FieldNames kNames = {{"max_tokens", "num_predict"},
                           {"repetition_penalty", "repeat_penalty"},
                           {"response_format", "format"},
                           {"reasoning_effort", "think"}};

void read_options(JsonFields& fields, Json& body) {
  fields.object("options", [&body](JsonFields& inner) {
    for (const std::string_view same :
         {"temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty"})
      inner.pass_on(same, body);
    inner.pass_on("repeat_penalty", body, "repetition_penalty");
    const Json* most = inner.find("num_predict", R"({"type": ["integer", "null"]})");
    if (most != nullptr && !(*most == Json(-1)) && !(*most == Json(-2))) body.set("max_tokens", *most);
    inner.refuse("mirostat", "it is not there; use 'temperature' and 'top_p'", Json(0));
    inner.refuse("typical_p", "it is not there; use 'min_p'", Json(1.0));
    inner.refuse("tfs_z", "it is not there; use 'min_p'", Json(1.0));
    inner.refuse("num_keep", "prompts are never cut", Json(0));
    // How the model is loaded is its operator's business, and done.
    for (const std::string_view loading :
         {"num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "use_mmap", "use_mlock",
          "f16_kv", "repeat_last_n", "penalize_newline"})
      inner.note(loading);
  });
}

void read_format(JsonFields& fields, Json& body) {
  const Json* format = fields.find("format", R"({"type": ["string", "object", "null"]})");
  if (format == nullptr || *format == Json("")) return;
  if (*format == Json("json"))
    body.set("response_format", Json::Object{{"type", "json_object"}});
  else if (format->is_object())
    body.set("response_format", Json::Object{{"type", "json_schema"},
                                             {"json_schema", Json::Object{{"name", "format"}, {"schema", *format}}}});
  else
    fields.wrong("format", "\"json\" or a JSON schema", *format);
}

void read_thinking(JsonFields& fields, Json& body) {
  const Json* think = fields.find("think", R"({"type": ["boolean", "string", "null"]})");
  if (think == nullptr) return;
  if (think->is_bool())
    body.set("chat_template_kwargs", Json::Object{{"enable_thinking", *think}});
  else if (think->is_string())
    body.set("reasoning_effort", *think);
  else
    fields.wrong("think", "true, false or a text", *think);
}

// "tiny:latest" is "tiny".
void read_model(JsonFields& fields, Json& body) {
  constexpr std::string_view kLatest = ":latest";
  const Json* model = fields.find("model", R"({"type": ["string", "null"]})");
  if (model == nullptr) return;
  const bool tagged = model->is_string() && model->as_string().ends_with(kLatest);
  body.set("model", tagged ? Json(model->as_string().substr(0, model->as_string().size() - kLatest.size())) : *model);
}

// Calls have no ids there, and their arguments are objects.
Result<Json> read_messages(const Json& given) {
  if (!given.is_array()) return given;  // told where messages are read
  Json::Array messages;
  for (size_t i = 0; i < given.as_array().size(); ++i) {
    Json message = given.as_array()[i];
    if (!message.is_object()) return given;
    Json made;
    for (const auto& [name, value] : message.as_object()) {
      if (name == "images" && value.is_array() && !value.as_array().empty())
        return tl::unexpected(Failure{ErrorCode::kUnsupported,
                                      fmt::format("'messages[{}].images' is not supported: only text is read", i),
                                      fmt::format("messages[{}]", i)});
      if (value.is_null() || name == "images") continue;
      made.set(name == "thinking" ? "reasoning_content" : name == "tool_name" ? "name" : name, value);
    }
    messages.push_back(std::move(made));
  }
  return Json(std::move(messages));
}

class OllamaDialect : public Dialect, private AnswerBlocks::Listener {
 public:
  explicit OllamaDialect(bool is_chat) : is_chat_(is_chat) {}

  bool is_chat() const noexcept override { return is_chat_ || !raw_; }
  bool is_open_ended() const noexcept override { return true; }
  std::string_view id_prefix() const noexcept override { return "ollama-"; }

  Result<Json> translate(Json given, FieldList* list) override {
    JsonFields fields(given, list);
    Json body;
    bool streams = true;
    fields.boolean("stream", &streams);
    body.set("stream", streams);
    read_model(fields, body);
    read_options(fields, body);
    for (const std::string_view same : {"session_id", "cache_salt", "priority"}) fields.pass_on(same, body);
    fields.note("keep_alive");
    if (is_chat_) {
      read_format(fields, body);
      read_thinking(fields, body);
      fields.pass_on("tools", body);
      const Json* messages =
          fields.find("messages", R"({"type": "array", "minItems": 1, "items": {"type": "object"}})");
      const Result<Json> made = read_messages(messages != nullptr ? *messages : Json());
      if (!made) return tl::unexpected(made.error());
      if (messages != nullptr) body.set("messages", *made);
    } else {
      read_prompt(fields, body);
    }
    for (const std::string_view name : {"logprobs", "top_logprobs"})
      fields.refuse(name, "ask /v1/chat/completions for them", Json(false));
    if (auto failure = fields.finish()) return tl::unexpected(std::move(*failure));
    return body;
  }

  Json whole(const AnswerHead& head, const CompletionRequest& request, const std::vector<Choice>& choices,
             const Usage& usage) override {
    const Json answer = whole_answer(head, request, choices, usage);
    take(answer.at("choices").as_array().front());
    blocks_.end(*this);
    return last_line(head, usage);
  }

  std::string_view stream_type() const noexcept override { return "application/x-ndjson"; }
  std::string chunk(const AnswerHead& head, const CompletionRequest& request, const Choice& added,
                    const Usage&) override {
    const Json chunk = chunk_answer(head, request, added, added.is_first);
    if (added.is_first) prompt_read_ = Clock::now();
    take(chunk.at("choices").as_array().front());
    if (text_.empty() && reasoning_.empty()) return {};
    return line(head, false).dump() + "\n";
  }
  std::string end(const AnswerHead& head, const CompletionRequest&, const Usage& usage) override {
    blocks_.end(*this);
    return last_line(head, usage).dump() + "\n";
  }

  Json error(const ApiError& error) const override { return ollama_error(error); }
  std::string error_end(const ApiError& error) const override { return this->error(error).dump() + "\n"; }

 private:
  void read_prompt(JsonFields& fields, Json& body) {
    fields.boolean("raw", &raw_);
    for (const std::string_view name : {"suffix", "template"}) fields.refuse(name, "the model's own is used", Json(""));
    fields.refuse("context", "go on with 'session_id'", Json(Json::Array{}));
    fields.refuse("images", "only text is read", Json(Json::Array{}));
    for (const std::string_view name : {"width", "height", "steps"}) fields.refuse(name, "no pictures are made");
    const Json* prompt = fields.find("prompt", R"({"type": "string", "minLength": 1})");
    if (prompt == nullptr || !prompt->is_string() || prompt->as_string().empty())
      fields.problem("prompt", "'prompt' must be a text that is not empty");
    const Json text = prompt != nullptr ? *prompt : Json();
    read_format(fields, body);
    if (raw_) {
      fields.refuse("system", "'raw' has no place for it");
      fields.refuse("think", "'raw' has no place for it", Json(false));
      body.set("prompt", text);
      return;
    }
    read_thinking(fields, body);
    Json::Array messages;
    const Json* system = fields.find("system", R"({"type": ["string", "null"]})");
    if (system != nullptr && !system->is_string()) fields.wrong("system", "a text", *system);
    if (system != nullptr && !(*system == Json("")))
      messages.push_back(Json(Json::Object{{"role", "system"}, {"content", *system}}));
    messages.push_back(Json(Json::Object{{"role", "user"}, {"content", text}}));
    body.set("messages", std::move(messages));
  }

  // A choice of ours, whole or of a chunk.
  void take(const Json& choice) {
    if (const Json* text = choice.find("text"))
      blocks_.take(Json(Json::Object{{"content", *text}}), *this);
    else
      blocks_.take(choice.find("message") != nullptr ? choice.at("message") : choice.at("delta"), *this);
    if (!choice.at("finish_reason").is_null()) finish_reason_ = choice.at("finish_reason");
  }
  void block_begins(const AnswerBlock&, size_t) override {}
  void block_grows(const AnswerBlock& block, size_t, const std::string& by) override {
    if (block.kind == AnswerBlock::Kind::kText) text_ += by;
    if (block.kind == AnswerBlock::Kind::kReasoning) reasoning_ += by;
  }
  // Calls are told whole.
  void block_ends(const AnswerBlock& block, size_t) override {
    if (block.kind != AnswerBlock::Kind::kCall) return;
    const Result<Json> arguments = parse_json(block.text.empty() ? "{}" : block.text, "arguments");
    calls_.push_back(
        Json(Json::Object{{"function", Json::Object{{"name", block.name},
                                                    {"arguments", arguments ? *arguments : Json(Json::Object{})}}}}));
  }

  // What has come since the line before.
  Json line(const AnswerHead& head, bool is_done) {
    Json json(Json::Object{{"model", head.model}, {"created_at", iso_time(std::time(nullptr))}});
    const std::string text = std::exchange(text_, {}), reasoning = std::exchange(reasoning_, {});
    if (is_chat_) {
      Json message(Json::Object{{"role", "assistant"}, {"content", text}});
      if (!reasoning.empty()) message.set("thinking", reasoning);
      if (!calls_.empty()) message.set("tool_calls", std::exchange(calls_, {}));
      json.set("message", std::move(message));
    } else {
      json.set("response", text);
      if (!reasoning.empty()) json.set("thinking", reasoning);
    }
    json.set("done", is_done);
    return json;
  }
  Json last_line(const AnswerHead& head, const Usage& usage) {
    const auto now = Clock::now();
    const auto ns = [](Clock::duration time) {
      return static_cast<int64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
    };
    Json json = line(head, true);
    json.set("done_reason", finish_reason_ == Json("length") ? "length" : "stop");
    json.set("total_duration", ns(now - begun_));
    json.set("load_duration", 0);
    json.set("prompt_eval_count", usage.prompt_tokens);
    json.set("eval_count", usage.completion_tokens);
    if (prompt_read_ != Clock::time_point()) {
      json.set("prompt_eval_duration", ns(prompt_read_ - begun_));
      json.set("eval_duration", ns(now - prompt_read_));
    }
    json.set("coluber", cache_json(usage));
    return json;
  }

  const bool is_chat_;
  bool raw_ = false;
  AnswerBlocks blocks_;
  std::string text_, reasoning_;
  Json::Array calls_;
  Json finish_reason_;
  Clock::time_point begun_ = Clock::now(), prompt_read_;
};

}  // namespace

Json ollama_error(const ApiError& error) { return Json(Json::Object{{"error", renamed(error, kNames).message}}); }

std::unique_ptr<Dialect> ollama_chat() { return std::make_unique<OllamaDialect>(true); }
std::unique_ptr<Dialect> ollama_generate() { return std::make_unique<OllamaDialect>(false); }

}  // namespace coluber::server

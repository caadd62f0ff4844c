// SPDX-License-Identifier: Apache-2.0
#include "apps/server/conversation.h"

#include <algorithm>

#include "apps/cli/next_turn.h"

namespace coluber::server {
namespace {

// Parts of text become one text; OpenAI's arguments of earlier calls, JSON in a string, become the values that
// templates want. False where the message is not right.
bool tidy_message(Json& message) {
  const Json* role = message.find("role");
  if (role == nullptr || !role->is_string()) return false;
  if (const Json* content = message.find("content"); content != nullptr && content->is_array()) {
    std::string text;
    for (const Json& part : content->as_array()) {
      const Json* type = part.find("type");
      const Json* words = part.find("text");
      if (type == nullptr || !type->is_string() || type->as_string() != "text" || words == nullptr ||
          !words->is_string())
        return false;
      text += (text.empty() ? "" : "\n") + words->as_string();
    }
    message.set("content", text);
  } else if (content == nullptr || content->is_null()) {
    // An answer may be calls alone; of others a template would fail in words of its own.
    return role->as_string() == "assistant";
  } else if (!content->is_string()) {
    return false;
  }
  return true;
}

void tidy_calls(Json& message) {
  for (auto& [name, calls] : message.as_object()) {
    if (name != "tool_calls" || !calls.is_array()) continue;
    for (Json& call : calls.as_array()) {
      const Json* function = call.find("function");
      const Json* arguments = function == nullptr ? nullptr : function->find("arguments");
      if (arguments == nullptr || !arguments->is_string()) continue;
      Result<Json> parsed = parse_json(arguments->as_string(), "arguments");
      if (!parsed || !parsed->is_object()) continue;
      Json changed = *function;
      changed.set("arguments", std::move(*parsed));
      call.set("function", std::move(changed));
    }
  }
}

struct Rendering {
  const Engine& engine;
  bool generation_prompt;
  std::string tools, kwargs;

  ChatText render(const Json& messages, bool prompt) const {
    return engine.render_chat(messages.dump(), prompt, tools, kwargs);
  }
};

// What follows the messages that a session was begun with.
ChatText behind_opening(const Rendering& how, const Json& opening, const Json& messages) {
  Json all = opening;
  for (const Json& message : messages.as_array()) all.push_back(message);
  const ChatText before = how.render(opening, false), rendered = how.render(all, how.generation_prompt);
  if (!rendered.text.starts_with(before.text))
    throw Error(ErrorCode::kUnsupported,
                "this model's chat template writes the session's messages otherwise where others follow; begin a new "
                "session with all of them");
  return rendered.behind(before.text.size());
}

// Up to the end of the last message's text, which the answer goes on with.
ChatText up_to_final_message(const Rendering& how, const Json& messages) {
  const Json& last = messages.as_array().back();
  const Json* content = last.find("content");
  std::string words = content != nullptr && content->is_string() ? content->as_string() : std::string();
  words.erase(words.find_last_not_of(" \n\r\t") + 1);
  if (!(last.at("role") == Json("assistant")) || words.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "'continue_final_message' goes on with the text of the last message, which must be the assistant's");
  ChatText rendered = how.render(messages, false);
  const size_t at = rendered.text.rfind(words);
  if (at == std::string::npos)
    throw Error(ErrorCode::kUnsupported,
                "'continue_final_message' cannot be done: this model's chat template changes the last message's text");
  rendered.text.resize(at + words.size());
  while (!rendered.typed.empty() && rendered.typed.back().begin >= rendered.text.size()) rendered.typed.pop_back();
  if (!rendered.typed.empty()) rendered.typed.back().end = std::min(rendered.typed.back().end, rendered.text.size());
  return rendered;
}

Result<ChatText> rendered_text(const Rendering& how, const Json& messages, bool continues, const HeldSession* session) {
  try {
    const bool is_held = session != nullptr && session->num_tokens > 0;
    if (continues && is_held)
      throw Error(ErrorCode::kUnsupported, "'continue_final_message' does not go with a session that holds something");
    if (continues) return up_to_final_message(how, messages);
    if (!is_held) return how.render(messages, how.generation_prompt);
    if (session->opening.is_array()) return behind_opening(how, session->opening, messages);
    return cli::text_behind_answer(how.engine, messages.as_array(), how.generation_prompt, how.tools, how.kwargs);
  } catch (const Error& error) {
    return tl::unexpected(Failure{error.code(), error.what(), continues ? "continue_final_message" : "messages"});
  }
}

}  // namespace

std::vector<int32_t> RenderedConversation::encode(const Engine& engine) const {
  return special_in_messages ? engine.encode(text.text, false) : engine.encode_chat(text);
}

Result<Json> read_messages(JsonFields& fields) {
  const auto bad = [](std::string_view param, std::string message) {
    return tl::unexpected<Failure>(Failure{ErrorCode::kInvalidArgument, std::move(message), std::string(param)});
  };
  const Json* given = fields.find("messages", R"({"type": "array", "minItems": 1, "items": {"type": "object"}})");
  if (given == nullptr || !given->is_array() || given->as_array().empty())
    return bad("messages", "'messages' must be a list of {\"role\", \"content\"} with at least one");
  Json messages = *given;
  for (size_t i = 0; i < messages.as_array().size(); ++i) {
    Json& message = messages.as_array()[i];
    if (!message.is_object() || !tidy_message(message))
      return bad(fmt::format("messages[{}]", i),
                 fmt::format("'messages[{}]' must have a 'role' and a 'content', which is a text or a list of "
                             "{{\"type\": \"text\", \"text\": ...}}; other kinds of parts are not supported",
                             i));
    tidy_calls(message);
  }
  return messages;
}

Result<RenderedConversation> render_conversation(JsonFields& fields, const Engine& engine, bool generation_prompt,
                                                 const HeldSession* session) {
  RenderedConversation made;
  bool continues = false;
  const bool says_prompt = fields.boolean("add_generation_prompt", &generation_prompt) && generation_prompt;
  fields.boolean("continue_final_message", &continues);
  if (continues && says_prompt)
    fields.problem("continue_final_message",
                   "'continue_final_message' begins no new message, and 'add_generation_prompt' does; give one");
  fields.boolean("special_tokens_in_messages", &made.special_in_messages);
  fields.refuse("chat_template", "templates come with the model, never from a client");
  fields.refuse("documents", "there is no place for documents; put them in a message");
  made.tools = read_tools(fields);
  Json extra = Json(Json::Object{});
  if (const Json* given = fields.find("chat_template_kwargs", R"({"type": ["object", "null"]})")) {
    if (!given->is_object())
      return tl::unexpected(
          Failure{ErrorCode::kInvalidArgument, "'chat_template_kwargs' must be an object", "chat_template_kwargs"});
    extra = *given;
  }
  constexpr size_t kMaxEffortBytes = 64;
  std::string effort;
  if (fields.text("reasoning_effort", &effort, kMaxEffortBytes)) extra.set("reasoning_effort", effort);
  const Result<Json> messages = read_messages(fields);
  if (!messages) return tl::unexpected(messages.error());
  if (!engine.has_chat_template())
    return tl::unexpected(
        Failure{ErrorCode::kInvalidArgument, "this model has no chat template; use /v1/completions", "messages"});
  const Rendering how{engine, generation_prompt, made.tools.tools.is_null() ? std::string() : made.tools.tools.dump(),
                      extra.dump()};
  Result<ChatText> text = rendered_text(how, *messages, continues, session);
  if (!text) return tl::unexpected(std::move(text.error()));
  made.text = std::move(*text);
  return made;
}

}  // namespace coluber::server

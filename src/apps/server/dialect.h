// SPDX-License-Identifier: Apache-2.0
//
// How one API words a request for text and the answers to it. What lies between is the same for all: a body is put
// into the words of /v1/completions or /v1/chat/completions, read there, and run. One object a request; it may keep
// what it has said so far. `translate` and `session_use` are called on a worker, the others on the thread of the
// connections.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/server/api_error.h"
#include "apps/server/completion_response.h"

namespace coluber::server {

// What a request does with sessions.
struct SessionUse {
  enum class Kind {
    kNone,
    kGoOn,  // with the session `id`
    kFork,  // of the session `id`; what comes of it is kept under the answer's id
    kNew,   // likewise, from nothing
  };
  Kind kind = Kind::kNone;
  std::string id = {};

  bool is_kept() const noexcept { return kind == Kind::kFork || kind == Kind::kNew; }
};

class Dialect {
 public:
  virtual ~Dialect() = default;
  virtual bool is_chat() const noexcept = 0;
  virtual std::string_view id_prefix() const noexcept = 0;  // of answers
  // Where nobody says how long an answer may be: all that is left of the context, also without a conversation.
  virtual bool is_open_ended() const noexcept { return is_chat(); }
  // `list`, where not null, hears of every field that is not passed through.
  virtual Result<Json> translate(Json body, FieldList*) { return body; }
  // Of a translated body. Whatever names a session there in words of this API alone is taken out of it.
  virtual ApiResult<SessionUse> session_use(Json& body);
  // Whether what comes of a session that was made for the answer stays.
  virtual bool keeps_session() const noexcept { return false; }
  // The session that a request forks remembers what an earlier one noted.
  virtual std::optional<Failure> check_note(const Json&) { return std::nullopt; }
  virtual void write_note(Json&) const {}

  virtual Json whole(const AnswerHead& head, const CompletionRequest& request, const std::vector<Choice>& choices,
                     const Usage& usage) = 0;
  // Pieces of a stream as they are sent, in order: one `begin`, a `chunk` for what came of an answer, one `end`.
  virtual std::string_view stream_type() const noexcept { return "text/event-stream; charset=utf-8"; }
  virtual std::string begin(const AnswerHead&, const CompletionRequest&) { return {}; }
  virtual std::string chunk(const AnswerHead& head, const CompletionRequest& request, const Choice& added,
                            const Usage& usage) = 0;
  virtual std::string end(const AnswerHead& head, const CompletionRequest& request, const Usage& usage) = 0;

  virtual Json error(const ApiError& error) const { return error.json(); }
  // The end of a stream that has begun.
  virtual std::string error_end(const ApiError& error) const = 0;
};

std::unique_ptr<Dialect> openai_completions();
std::unique_ptr<Dialect> openai_chat();
std::unique_ptr<Dialect> openai_responses();
std::unique_ptr<Dialect> anthropic_messages();
std::unique_ptr<Dialect> ollama_chat();
std::unique_ptr<Dialect> ollama_generate();

}  // namespace coluber::server

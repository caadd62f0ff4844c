// SPDX-License-Identifier: Apache-2.0
//
// /v1/completions and /v1/chat/completions: the words that everything else is translated to.
#include "apps/server/dialect.h"

namespace coluber::server {
namespace {

std::string event(const Json& json) { return "data: " + json.dump() + "\n\n"; }

class OpenAiDialect : public Dialect {
 public:
  explicit OpenAiDialect(bool is_chat) : is_chat_(is_chat) {}

  bool is_chat() const noexcept override { return is_chat_; }
  std::string_view id_prefix() const noexcept override { return is_chat_ ? "chatcmpl-" : "cmpl-"; }

  Json whole(const AnswerHead& head, const CompletionRequest& request, const std::vector<Choice>& choices,
             const Usage& usage) override {
    return whole_answer(head, request, choices, usage);
  }
  std::string chunk(const AnswerHead& head, const CompletionRequest& request, const Choice& added,
                    const Usage& usage) override {
    Json chunk = chunk_answer(head, request, added, added.is_first);
    if (added.is_last && !request.include_usage) chunk.set("coluber", cache_json(usage));
    if (request.continuous_usage) chunk.set("usage", usage_json(usage));
    return event(chunk);
  }
  std::string end(const AnswerHead& head, const CompletionRequest& request, const Usage& usage) override {
    std::string events = request.include_usage ? event(usage_chunk(head, request, usage)) : std::string();
    return events + "data: [DONE]\n\n";
  }
  std::string error_end(const ApiError& error) const override { return event(error.json()) + "data: [DONE]\n\n"; }

 private:
  const bool is_chat_;
};

}  // namespace

ApiResult<SessionUse> Dialect::session_use(Json& body) {
  const Json* id = body.find("session_id");
  if (id == nullptr || !id->is_string()) return SessionUse{};  // what else it may be is told where fields are read
  return SessionUse{SessionUse::Kind::kGoOn, id->as_string()};
}

std::unique_ptr<Dialect> openai_completions() { return std::make_unique<OpenAiDialect>(false); }
std::unique_ptr<Dialect> openai_chat() { return std::make_unique<OpenAiDialect>(true); }

}  // namespace coluber::server

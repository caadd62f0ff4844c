// SPDX-License-Identifier: Apache-2.0
#include "apps/server/small_bodies.h"

namespace coluber::server {
namespace {

constexpr size_t kMaxText = size_t{1} << 30;  // the body's limit comes first
constexpr int64_t kMaxTokens = int64_t{1} << 31;
constexpr size_t kMaxNameBytes = 256;

}  // namespace

TokenizeBody read_tokenize(JsonFields& fields, const ModelFacts& facts, const Engine& engine) {
  TokenizeBody body;
  check_model(fields, facts);
  const bool is_chat = fields.has("messages");
  body.special = !is_chat;
  fields.boolean("add_special_tokens", &body.special);
  fields.boolean("return_token_strs", &body.wants_strings);
  if (is_chat || fields.is_described()) {
    Result<RenderedConversation> rendered = render_conversation(fields, engine);
    if (rendered)
      body.conversation = std::move(*rendered);
    else
      fields.problem(rendered.error().param, rendered.error().message, rendered.error().code);
  }
  if (is_chat && body.special)
    fields.problem("add_special_tokens", "'add_special_tokens': the chat template writes special tokens itself");
  if (!is_chat && !fields.text("prompt", &body.text, kMaxText))
    fields.problem("prompt", "'prompt' (a text) or 'messages' is missing");
  return body;
}

Result<int64_t> count_tokens(JsonFields& fields, const ModelFacts& facts, const Engine& engine) {
  check_model(fields, facts);
  const Result<RenderedConversation> rendered = render_conversation(fields, engine);
  if (!rendered) return tl::unexpected(rendered.error());
  fields.note("response_format");  // the form of the answer is no part of what is asked
  if (auto failure = fields.finish()) return tl::unexpected(std::move(*failure));
  return std::ssize(rendered->encode(engine));
}

DetokenizeBody read_detokenize(JsonFields& fields, const ModelFacts& facts, const Engine&) {
  DetokenizeBody body;
  check_model(fields, facts);
  if (!fields.ids("tokens", facts.vocab_size, &body.tokens))
    fields.problem("tokens", "'tokens' (a list of token ids) is missing");
  return body;
}

RollbackBody read_rollback(JsonFields& fields, const ModelFacts&, const Engine&) {
  RollbackBody body;
  if (!fields.integer("tokens", 1, kMaxTokens, &body.tokens))
    fields.problem("tokens", "'tokens' is missing: how many of its tokens the session shall keep");
  return body;
}

SaveBody read_save(JsonFields& fields, const ModelFacts&, const Engine&) {
  SaveBody body;
  body.has_file = fields.text("file", &body.file, kMaxNameBytes);
  return body;
}

}  // namespace coluber::server

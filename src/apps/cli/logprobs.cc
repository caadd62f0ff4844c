// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/logprobs.h"

#include <cmath>
#include <utility>

namespace coluber::cli {
namespace {

// JSON has no infinity; OpenAI writes this for a token that cannot come.
constexpr double kImpossible = -9999.0;

bool is_known(const Tokenizer* tokenizer, int32_t id) { return tokenizer != nullptr && tokenizer->contains(id); }

Json entry(const Tokenizer* tokenizer, int32_t id, Json logprob) {
  const std::string name = token_name(tokenizer, id);
  Json::Array bytes;
  if (is_known(tokenizer, id))
    for (const char c : name) bytes.emplace_back(static_cast<int>(static_cast<unsigned char>(c)));
  Json out;
  out.set("token", name);  // the writer replaces what is not UTF-8
  out.set("logprob", std::move(logprob));
  out.set("bytes", is_known(tokenizer, id) ? Json(std::move(bytes)) : Json());
  return out;
}

Json logprobs_of(const Tokenizer* tokenizer, std::span<const TokenOutput> tokens, bool from_nothing) {
  Json::Array content;
  for (const TokenOutput& token : tokens) {
    const bool is_unknown = from_nothing && content.empty();
    Json one = entry(tokenizer, token.id, is_unknown ? Json() : logprob_json(token.logprob));
    Json::Array top;
    for (const TokenLogprob& other : token.top_logprobs)
      top.push_back(entry(tokenizer, other.id, logprob_json(other.logprob)));
    one.set("top_logprobs", std::move(top));
    content.push_back(std::move(one));
  }
  return Json(Json::Object{{"content", std::move(content)}, {"refusal", Json()}});
}

}  // namespace

Json logprob_json(float logprob) { return Json(std::isfinite(logprob) ? static_cast<double>(logprob) : kImpossible); }

std::string token_name(const Tokenizer* tokenizer, int32_t id) {
  return is_known(tokenizer, id) ? tokenizer->token_bytes(id) : fmt::format("token_id:{}", id);
}

Json openai_logprobs(const Tokenizer* tokenizer, std::span<const TokenOutput> tokens) {
  return logprobs_of(tokenizer, tokens, false);
}

Json openai_prompt_logprobs(const Tokenizer* tokenizer, std::span<const TokenOutput> tokens) {
  return logprobs_of(tokenizer, tokens, true);
}

}  // namespace coluber::cli

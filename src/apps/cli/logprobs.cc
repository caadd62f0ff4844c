// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/logprobs.h"

#include <cmath>
#include <utility>

namespace coluber::cli {
namespace {

// JSON has no infinity; OpenAI writes this for a token that cannot come.
constexpr double kImpossible = -9999.0;

Json number(float logprob) { return Json(std::isfinite(logprob) ? static_cast<double>(logprob) : kImpossible); }

Json entry(const Tokenizer* tokenizer, int32_t id, Json logprob) {
  Json out;
  if (tokenizer == nullptr || !tokenizer->contains(id)) {
    out.set("token", fmt::format("token_id:{}", id));
    out.set("logprob", std::move(logprob));
    out.set("bytes", Json());
    return out;
  }
  const std::string bytes = tokenizer->token_bytes(id);
  Json::Array values;
  for (const char c : bytes) values.emplace_back(static_cast<int>(static_cast<unsigned char>(c)));
  out.set("token", bytes);  // the writer replaces what is not UTF-8
  out.set("logprob", std::move(logprob));
  out.set("bytes", std::move(values));
  return out;
}

Json logprobs_of(const Tokenizer* tokenizer, std::span<const TokenOutput> tokens, bool from_nothing) {
  Json::Array content;
  for (const TokenOutput& token : tokens) {
    const bool is_unknown = from_nothing && content.empty();
    Json one = entry(tokenizer, token.id, is_unknown ? Json() : number(token.logprob));
    Json::Array top;
    for (const TokenLogprob& other : token.top_logprobs)
      top.push_back(entry(tokenizer, other.id, number(other.logprob)));
    one.set("top_logprobs", std::move(top));
    content.push_back(std::move(one));
  }
  return Json(Json::Object{{"content", std::move(content)}, {"refusal", Json()}});
}

}  // namespace

Json openai_logprobs(const Tokenizer* tokenizer, std::span<const TokenOutput> tokens) {
  return logprobs_of(tokenizer, tokens, false);
}

Json openai_prompt_logprobs(const Tokenizer* tokenizer, std::span<const TokenOutput> tokens) {
  return logprobs_of(tokenizer, tokens, true);
}

}  // namespace coluber::cli

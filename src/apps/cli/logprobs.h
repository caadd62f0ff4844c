// SPDX-License-Identifier: Apache-2.0
//
// Log-probabilities in the shape of the OpenAI API:
// {"content": [{"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}, ...]}, ...],
//  "refusal": null}.
#pragma once

#include <span>

#include "base/json.h"
#include "coluber/engine.h"
#include "text/tokenizer/tokenizer.h"

namespace coluber::cli {

// "bytes" are what the token stands for, also where they are only part of a character; "token" is that as text, with
// U+FFFD for such parts. Without a tokenizer (null) a token is "token_id:17" and its bytes are null.
Json openai_logprobs(const Tokenizer* tokenizer, std::span<const TokenOutput> tokens);

// One number of them: JSON has no infinity.
Json logprob_json(float logprob);
// What a token is called in them: its bytes, which may be part of a character, or "token_id:17".
std::string token_name(const Tokenizer* tokenizer, int32_t id);

// Those of a whole prompt: null for its first token, which nothing comes before.
Json openai_prompt_logprobs(const Tokenizer* tokenizer, std::span<const TokenOutput> tokens);

}  // namespace coluber::cli

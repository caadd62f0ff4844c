// SPDX-License-Identifier: Apache-2.0
//
// Log-probabilities in the shape of the OpenAI API:
// {"content": [{"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}, ...]}, ...]}.
#pragma once

#include <span>

#include "base/json.h"
#include "coluber/engine.h"

namespace coluber::cli {

// A model without a tokenizer gives "token_id:17" for a token and null for its bytes.
Json openai_logprobs(const Engine& engine, std::span<const TokenOutput> tokens);

}  // namespace coluber::cli

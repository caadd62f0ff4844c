// SPDX-License-Identifier: Apache-2.0
//
// What is asked of a request before it is taken in. Every problem is told where it enters.
#include <algorithm>

#include "base/error.h"
#include "engine/engine_impl.h"
#include "engine/host_memory.h"

namespace coluber {

namespace {

constexpr int64_t kMostAnswers = 256;

void check_answers(const Request& request) {
  if (request.n < 1 || request.n > kMostAnswers)
    throw make_error(ErrorCode::kInvalidArgument, "n must be 1 to {}, found {}", kMostAnswers, request.n);
  if (request.best_of != 0 && (request.best_of < request.n || request.best_of > kMostAnswers))
    throw make_error(ErrorCode::kInvalidArgument, "best_of must be 0 (n) or n = {} to {}, found {}", request.n,
                     kMostAnswers, request.best_of);
  if (request.beam_width > 1) throw make_error(ErrorCode::kUnsupported, "beam_width above 1 cannot run yet");
  if (request.beam_width < 0)
    throw make_error(ErrorCode::kInvalidArgument, "beam_width must be at least 0, found {}", request.beam_width);
}

void refuse_what_cannot_run(const Request& request) {
  const SamplingParams& sampling = request.sampling;
  const auto refuse = [](bool asked, const char* what) {
    if (asked) throw make_error(ErrorCode::kUnsupported, "{} cannot run yet", what);
  };
  refuse(sampling.prompt_logprobs.has_value(), "prompt_logprobs");
  refuse(!sampling.logit_bias.empty(), "logit_bias");
  refuse(!sampling.allowed_token_ids.empty(), "allowed_token_ids");
  refuse(request.constraint != nullptr, "a constraint of tokens");
  refuse(request.pooling != Pooling::kNone, "pooling");
}

}  // namespace

void Engine::Impl::check_request(const Request& request) const {
  const ModelInfo& info = loaded.model->info();
  check_sampling(request.sampling, info.vocab_size, loaded.tokenizer != nullptr);
  check_ids(request.prompt_ids, info.vocab_size);
  check_answers(request);
  refuse_what_cannot_run(request);
  const auto prompt = static_cast<int64_t>(request.prompt_ids.size());
  if (prompt == 0) throw make_error(ErrorCode::kInvalidArgument, "the prompt is empty; give at least one token");
  const int64_t limit = loaded.config->max_model_len;
  if (prompt >= limit)
    throw make_error(
        ErrorCode::kContextLength,
        "the prompt has {} tokens and the model's context limit is {} with room for one more token; shorten the prompt",
        prompt, limit);
  // max_tokens may be as large as its type allows: "no limit".
  const int64_t total = prompt + std::min(limit - prompt, request.sampling.max_tokens);
  if (!cache->can_ever_hold(total))
    throw make_error(
        ErrorCode::kResourceExhausted,
        "a sequence of {} tokens needs {} of cache and {} may be used; ask for fewer tokens or allow more memory",
        total, format_bytes(cache->bytes_for(total)), format_bytes(cache->memory_bytes()));
}

}  // namespace coluber

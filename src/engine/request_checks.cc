// SPDX-License-Identifier: Apache-2.0
//
// What is asked of a request before it is taken in. Every problem is told where it enters.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/engine_impl.h"
#include "engine/host_memory.h"
#include "engine/limits.h"

namespace coluber {

namespace {

void check_answers(const Request& request) {
  if (request.n < 1 || request.n > kMostAnswers)
    throw make_error(ErrorCode::kInvalidArgument, "n must be 1 to {}, found {}", kMostAnswers, request.n);
  if (request.best_of != 0 && (request.best_of < request.n || request.best_of > kMostAnswers))
    throw make_error(ErrorCode::kInvalidArgument, "best_of must be 0 (n) or n = {} to {}, found {}", request.n,
                     kMostAnswers, request.best_of);
  if (request.beam_width < 0 || request.beam_width > kMostAnswers)
    throw make_error(ErrorCode::kInvalidArgument, "beam_width must be 0 (off) to {}, found {}", kMostAnswers,
                     request.beam_width);
}

// Beams follow the model's own probabilities; a hypothesis has no text until the search ends.
void check_beams(const Request& request, int64_t max_num_seqs) {
  if (request.beam_width <= 1) return;
  const SamplingParams& sampling = request.sampling;
  const auto refuse = [](bool asked, const char* what, const char* why) {
    if (asked) throw make_error(ErrorCode::kUnsupported, "beam search does not go with {}: {}", what, why);
  };
  refuse(!sampling.stop.empty(), "stop strings", "hypotheses have no text; use stop_token_ids");
  refuse(request.constraint != nullptr || !sampling.logit_bias.empty() || !sampling.allowed_token_ids.empty(),
         "a constraint, logit_bias or allowed_token_ids", "it follows the model's own probabilities");
  refuse(sampling.repetition_penalty != 1.0f || sampling.presence_penalty != 0.0f || sampling.frequency_penalty != 0.0f,
         "penalties", "it follows the model's own probabilities; set repetition_penalty 1 and the other two 0");
  refuse(request.best_of != 0, "best_of", "it gives the n best of its beams anyway");
  refuse(sampling.max_tokens == 0, "max_tokens 0", "there is nothing to search");
  if (request.n > request.beam_width)
    throw make_error(ErrorCode::kInvalidArgument, "n must be at most beam_width = {}, found {}", request.beam_width,
                     request.n);
  if (request.beam_width > max_num_seqs)
    throw make_error(ErrorCode::kInvalidArgument,
                     "beam_width must be at most max_num_seqs = {}, for all beams run at once, found {}", max_num_seqs,
                     request.beam_width);
  if (!std::isfinite(request.length_penalty) || std::abs(request.length_penalty) > kMostLengthPenalty)
    throw make_error(ErrorCode::kInvalidArgument, "length_penalty must be between {} and {}, found {}",
                     -kMostLengthPenalty, kMostLengthPenalty, request.length_penalty);
}

// Requests that are read and not answered.
void check_reading(const Request& request) {
  const bool pools = request.pooling != Pooling::kNone;
  if (!pools && request.sampling.max_tokens > 0) return;
  const char* what = pools ? "pooling" : "max_tokens 0";
  if (request.n != 1 || request.best_of > 1 || request.beam_width > 1)
    throw make_error(ErrorCode::kInvalidArgument,
                     "{} gives no answers: n must be 1 and best_of and beam_width off, found {}, {} and {}", what,
                     request.n, request.best_of, request.beam_width);
  if (pools && request.sampling.prompt_logprobs)
    throw Error(ErrorCode::kInvalidArgument, "pooling does not go with prompt_logprobs; ask in two requests");
}

}  // namespace

void Engine::Impl::check_request(const Request& request) const {
  const ModelInfo& info = loaded.model->info();
  check_sampling(request.sampling, info.vocab_size, loaded.tokenizer != nullptr);
  check_ids(request.prompt_ids, info.vocab_size);
  check_answers(request);
  check_beams(request, loaded.config->scheduler.max_num_seqs);
  check_reading(request);
  check_session(request);
  const auto prompt = std::ssize(held_tokens(request)) + std::ssize(request.prompt_ids);
  if (prompt == 0) throw make_error(ErrorCode::kInvalidArgument, "the prompt is empty; give at least one token");
  const int64_t limit = loaded.config->max_model_len;
  const bool answers_nothing = request.pooling != Pooling::kNone || request.sampling.max_tokens == 0;
  if (prompt > limit || (prompt == limit && !answers_nothing))
    throw make_error(
        ErrorCode::kContextLength,
        "the prompt has {} tokens and the model's context limit is {} with room for one more token; shorten the prompt",
        prompt, limit);
  // max_tokens may be as large as its type allows: "no limit".
  const int64_t total = prompt + (answers_nothing ? 0 : std::min(limit - prompt, request.sampling.max_tokens));
  const int64_t sequences = std::max<int64_t>(request.beam_width, 1);
  if (!cache->can_ever_hold(total) || cache->bytes_for(total) * sequences > cache->memory_bytes())
    throw make_error(ErrorCode::kResourceExhausted,
                     "{} of {} tokens needs {} of cache and {} may be used; ask for fewer tokens or allow more memory",
                     sequences == 1 ? std::string("a sequence") : fmt::format("a search by {} beams", sequences), total,
                     format_bytes(cache->bytes_for(total) * sequences), format_bytes(cache->memory_bytes()));
}

}  // namespace coluber

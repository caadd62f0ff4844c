// SPDX-License-Identifier: Apache-2.0
//
// Requests that go on from a session: its tokens, states and pages are the answer's sequence until that has ended.
#include <utility>

#include "base/error.h"
#include "engine/session_impl.h"

namespace coluber {

std::span<const int32_t> Engine::Impl::held_tokens(const Request& request) const {
  if (!request.session) return {};
  return request.session->impl_->sequence.tokens;
}

void Engine::Impl::check_session(const Request& request) const {
  if (!request.session) return;
  const Session::Impl& session = *request.session->impl_;
  const auto refuse = [](bool asked, const char* what, const char* why) {
    if (asked) throw make_error(ErrorCode::kUnsupported, "a session does not go with {}: {}", what, why);
  };
  if (&session.engine != this) throw Error(ErrorCode::kInvalidArgument, "the session is of another engine");
  session.check_here();
  refuse(request.n != 1 || request.best_of > 1 || request.beam_width > 1, "n, best_of or beam_width beyond 1",
         "it goes on with one answer; fork it for others");
  refuse(request.sampling.prompt_logprobs.has_value(), "prompt_logprobs", "what it holds is not computed again");
  refuse(request.pooling == Pooling::kMean, "pooling 'mean'", "what it holds is not computed again; use 'last'");
  refuse(!request.cache_salt.empty() && !session.sequence.tokens.empty(), "cache_salt",
         "it has the one that it began with");
  if (request.prompt_ids.empty() && session.sequence.num_uncomputed() == 0)
    throw Error(ErrorCode::kInvalidArgument,
                "the session has no token that is not computed yet to go on from; give a prompt of at least one token");
}

std::unique_ptr<Sequence> Engine::Impl::take_session(ActiveRequest& request, RequestId id) {
  Session::Impl& session = *request.request.session->impl_;
  const bool goes_on = request.request.prompt_ids.empty() && session.answer_start != kNoAnswer;
  session.choose_stream(request.request.sampling, goes_on);
  request.seed = session.sampler.seed;
  request.first_draw = static_cast<uint64_t>(session.sampler.position);
  if (goes_on) request.answer_start = session.answer_start;
  session.is_lent = true;
  session.last_logits.clear();
  session.answer_start = kNoAnswer;
  session.fresh_tokens = 0;
  auto sequence = std::make_unique<Sequence>(std::exchange(session.sequence, {}));
  cache->become_request(*sequence, id);
  return sequence;
}

void Engine::Impl::give_session_back(ActiveRequest& request, Sequence& sequence, bool failed) {
  Session::Impl& session = *request.request.session->impl_;
  if (failed) {
    cache->release(sequence);
    sequence.tokens.resize(static_cast<size_t>(request.session_tokens));
    cache->follow_length(sequence);
  } else if (sequence.num_tokens() > request.prompt_tokens) {
    session.sampler.position += sequence.num_tokens() - request.prompt_tokens;
    session.answer_start = request.answer_start;
  }
  cache->become_session(sequence);
  session.sequence = std::move(sequence);
  session.is_lent = false;
}

}  // namespace coluber

// SPDX-License-Identifier: Apache-2.0
//
// Requests that search by beams: each hypothesis is an answer with a sequence of its own, forked where two go on from
// one. All wait until the last of them has its logits; one that loses its place meanwhile is brought back.
#include <algorithm>

#include "base/error.h"
#include "engine/engine_impl.h"

namespace coluber {

void Engine::Impl::add_beams(ActiveRequest& request) const {
  const SamplingParams& sampling = request.request.sampling;
  BeamOptions beams;
  beams.width = request.request.beam_width;
  beams.wanted = request.request.n;
  beams.prompt_tokens = request.prompt_tokens;
  beams.max_tokens = request.max_total_tokens - request.prompt_tokens;
  beams.min_tokens = sampling.min_tokens;
  beams.length_penalty = request.request.length_penalty;
  beams.early_stopping = request.request.early_stopping;
  if (!sampling.ignore_eos) beams.stop_ids = loaded.eos_token_ids;
  beams.stop_ids.insert(beams.stop_ids.end(), sampling.stop_token_ids.begin(), sampling.stop_token_ids.end());
  beams.reported = sampling.logprobs.value_or(0);
  request.beams = std::make_unique<BeamSearch>(std::move(beams));
}

void Engine::Impl::advance_beam(int64_t number, std::span<const float> logits, std::vector<RequestOutput>& outputs) {
  const Answer& answer = answers.at(number);
  const RequestId id = answer.request;
  ActiveRequest& request = requests.at(id);
  const Sequence& sequence = *answer.sequence;
  SampleResult likeliest =
      score_token(logits.data(), std::ssize(logits), 0, request.beams->num_candidates(), beam_scratch);
  const char* broken = likeliest.non_finite ? "logits" : cache->keep_step_end(*answer.sequence) ? nullptr : "states";
  if (broken != nullptr)
    return fail_answer(number, ErrorCode::kNonFinite,
                       fmt::format("the model's {} are not finite after {} tokens; the search ends here", broken,
                                   sequence.num_tokens()),
                       outputs);
  const auto beam = static_cast<size_t>(std::ranges::find(request.running, number) - request.running.begin());
  request.beams->score(beam, std::move(likeliest.top_logprobs));
  if (!request.beams->is_ready()) return;
  fork_beams(id, request);
  if (request.beams->is_done()) deliver_beams(id, request, outputs);
}

// The first that goes on from a hypothesis takes its sequence, the others take copies. Who has no successor makes room
// first.
void Engine::Impl::fork_beams(RequestId id, ActiveRequest& request) {
  const std::vector<int64_t> before = request.running;
  const std::vector<size_t> parents = request.beams->advance();
  if (request.beams->is_done()) return;
  for (size_t i = 0; i < before.size(); ++i)
    if (std::ranges::find(parents, i) == parents.end()) end_answer(before[i], false);
  std::vector<int64_t> after;
  for (size_t i = 0; i < parents.size(); ++i) {
    const int64_t parent = before[parents[i]];
    const bool is_first = std::find(parents.begin(), parents.begin() + static_cast<int64_t>(i), parents[i]) ==
                          parents.begin() + static_cast<int64_t>(i);
    after.push_back(is_first ? parent : fork_answer(id, request, *answers.at(parent).sequence));
  }
  request.running = after;
  for (size_t i = 0; i < after.size(); ++i) {
    Sequence& sequence = *answers.at(after[i]).sequence;
    sequence.tokens.push_back(request.beams->last_token(i));
    cache->follow_length(sequence);
  }
}

RequestOutput Engine::Impl::beam_output(const Answer& answer, const BeamHypothesis& hypothesis, int64_t index) const {
  const SamplingParams& sampling = requests.at(answer.request).request.sampling;
  RequestOutput output = new_output(answer);
  output.index = index;
  output.tokens = hypothesis.tokens;
  output.completion_tokens = std::ssize(hypothesis.tokens);
  output.cumulative_logprob = hypothesis.cumulative_logprob;
  output.finish_reason = hypothesis.finish_reason;
  std::vector<int32_t> shown;
  for (TokenOutput& token : output.tokens) {
    shown.push_back(token.id);
    if (!sampling.logprobs) token.logprob = 0.0f;
  }
  if (output.finish_reason == FinishReason::kStop) shown.pop_back();
  if (loaded.tokenizer) output.text = loaded.tokenizer->decode(shown, sampling.skip_special_tokens);
  return output;
}

void Engine::Impl::deliver_beams(RequestId id, ActiveRequest& request, std::vector<RequestOutput>& outputs) {
  const std::vector<BeamHypothesis> best = request.beams->take_best();
  const Answer& answer = answers.at(request.running.front());
  for (size_t i = 0; i < best.size(); ++i) {
    RequestOutput output = beam_output(answer, best[i], static_cast<int64_t>(i));
    if (i == 0 && request.reader) output.prompt_tokens_logprobs = request.reader->take_logprobs();
    output.request_finished = i + 1 == best.size();
    outputs.push_back(std::move(output));
  }
  const std::vector<int64_t> running = request.running;
  for (const int64_t number : running) end_answer(number, number == running.front());
  requests.erase(id);
}

}  // namespace coluber

// SPDX-License-Identifier: Apache-2.0
//
// Requests whose prompts are looked at: log-probabilities of their tokens, pooled hidden states.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/engine_impl.h"

namespace coluber {

bool Engine::Impl::pools_in_plan() const {
  return std::ranges::any_of(plan.rows, [this](const PlanRow& row) {
    const std::unique_ptr<PromptReader>& reader = requests.at(row.sequence->request_id).reader;
    return reader && reader->pools();
  });
}

void Engine::Impl::pool_hidden(const float* values, int64_t cols) {
  for (size_t row = 0; row < plan.rows.size(); ++row) {
    const PlanRow& planned = plan.rows[row];
    PromptReader* reader = requests.at(planned.sequence->request_id).reader.get();
    if (reader != nullptr && reader->pools())
      reader->read_hidden(planned.read_position, values + runner->first_token(row) * cols, planned.num_tokens, cols);
  }
}

bool Engine::Impl::read_prompt(size_t row, std::vector<RequestOutput>& outputs) {
  const int64_t number = plan_ids[row];
  Answer& answer = answers.at(number);
  ActiveRequest& request = requests.at(answer.request);
  if (!request.reader) return true;
  Sequence& sequence = *answer.sequence;
  const PlanRow& planned = plan.rows[row];
  if (sequence.wants_all_logits && !request.reader->read_logits(sequence.tokens, planned.read_position,
                                                                runner->logits(row), loaded.model->info().vocab_size)) {
    fail_answer(number, ErrorCode::kNonFinite,
                fmt::format("the model gave logits that are not finite before token {} of the prompt; the request ends "
                            "here",
                            planned.write_position),
                outputs);
    return false;
  }
  if (sequence.num_uncomputed() > 0) return true;
  // The prompt has been read: what follows is like any answer.
  sequence.wants_all_logits = sequence.shuns_cached = false;
  sequence.most_chunk_tokens = 0;
  if (!request.reader->pools() && request.request.sampling.max_tokens > 0) return true;
  end_without_tokens(number, outputs);
  return false;
}

void Engine::Impl::end_without_tokens(int64_t number, std::vector<RequestOutput>& outputs) {
  const Answer& answer = answers.at(number);
  const PromptReader& reader = *requests.at(answer.request).reader;
  if (!keep_states(number, outputs)) return;
  RequestOutput output = new_output(answer);
  output.finish_reason = reader.pools() ? FinishReason::kStop : FinishReason::kLength;
  if (reader.pools()) {
    output.embedding = reader.embedding();
    if (!std::ranges::all_of(output.embedding, [](float value) { return std::isfinite(value); }))
      return fail_answer(number, ErrorCode::kNonFinite, "the model's hidden states are not finite", outputs);
  }
  deliver(number, std::move(output), outputs);
}

}  // namespace coluber

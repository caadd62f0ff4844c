// SPDX-License-Identifier: Apache-2.0
#include "engine/generation.h"

#include <algorithm>
#include <exception>

#include "base/error.h"

namespace coluber {

Generation::Generation(SamplingParams params, uint64_t seed, std::span<const int32_t> eos_token_ids,
                       const Tokenizer* tokenizer, uint64_t first_position, std::unique_ptr<TokenConstraint> constraint)
    : params_(std::move(params)),
      seed_(seed),
      first_position_(first_position),
      text_(params_.stop, params_.include_stop_str_in_output),
      constraint_(std::move(constraint)) {
  if (!params_.ignore_eos) stop_ids_.assign(eos_token_ids.begin(), eos_token_ids.end());
  stop_ids_.insert(stop_ids_.end(), params_.stop_token_ids.begin(), params_.stop_token_ids.end());
  if (tokenizer != nullptr) detokenizer_.emplace(*tokenizer, params_.skip_special_tokens);
}

std::span<const int32_t> Generation::banned_ids() const noexcept {
  return num_generated_ < params_.min_tokens ? std::span<const int32_t>(stop_ids_) : std::span<const int32_t>();
}

SampleResult Generation::choose(std::span<const float> logits, std::span<const int32_t> tokens, int64_t num_prompt) {
  SampleInput input{.params = params_};
  input.logits = logits.data();
  input.vocab = static_cast<int64_t>(logits.size());
  input.prompt_ids = tokens.first(static_cast<size_t>(num_prompt));
  input.output_ids = tokens.subspan(static_cast<size_t>(num_prompt));
  input.seed = seed_;
  input.position = first_position_ + static_cast<uint64_t>(num_generated_);
  input.banned_ids = banned_ids();
  if (constraint_) {
    mask_.assign((logits.size() + 31) / 32, ~uint32_t{0});
    constraint_->fill_mask(mask_);
    input.mask = mask_;
  }
  return sample_token(input, scratch_);
}

void Generation::judge(const SampleResult& sample, size_t num_tokens, Result& result) {
  if (sample.non_finite) {
    result.error_code = ErrorCode::kNonFinite;
    result.error =
        fmt::format("the model gave logits that are not finite after {} tokens; the request ends here", num_tokens);
  } else if (sample.nothing_left) {
    result.error_code = ErrorCode::kInvalidArgument;
    result.error = fmt::format(
        "after {} tokens no token is left to choose from: {} allow none; allow an end token where the answer may end",
        num_tokens, constraint_ ? "the constraint and its like" : "allowed_token_ids and min_tokens");
  } else if (constraint_ && !constraint_->accept(sample.id)) {
    result.error_code = ErrorCode::kInternal;
    result.error = fmt::format("the constraint refused token {}, which it had allowed", sample.id);
  }
  if (!result.error.empty()) result.finish_reason = FinishReason::kError;
}

Generation::Result Generation::next(std::span<const float> logits, std::span<const int32_t> tokens,
                                    int64_t num_prompt) {
  SampleResult sample;
  Result result;
  try {
    sample = choose(logits, tokens, num_prompt);
    judge(sample, tokens.size(), result);
  } catch (const std::exception& error) {  // a constraint is the caller's code
    if (!constraint_) throw;
    result.finish_reason = FinishReason::kError;
    const auto* known = dynamic_cast<const Error*>(&error);
    result.error_code = known != nullptr ? known->code() : ErrorCode::kInternal;
    result.error = fmt::format("the constraint of tokens failed after {} tokens: {}", tokens.size(), error.what());
  }
  if (result.finish_reason != FinishReason::kError) accept(std::move(sample), result);
  return result;
}

bool Generation::takes_largest() const noexcept {
  return params_.temperature < kGreedyTemperature && !params_.logprobs && !constraint_ && banned_ids().empty() &&
         !may_change_logits(params_);
}

Generation::Result Generation::next_largest(int32_t id, size_t num_tokens) {
  SampleResult sample;
  sample.id = id;
  sample.non_finite = id < 0;
  Result result;
  judge(sample, num_tokens, result);
  if (result.finish_reason != FinishReason::kError) accept(std::move(sample), result);
  return result;
}

void Generation::accept(SampleResult sample, Result& result) {
  ++num_generated_;
  result.token = {sample.id, sample.logprob, std::move(sample.top_logprobs)};
  const bool stops = std::find(stop_ids_.begin(), stop_ids_.end(), sample.id) != stop_ids_.end();
  if (detokenizer_ && !stops) {
    std::string piece = detokenizer_->push(sample.id);
    // Stop strings among the first min_tokens tokens do not count.
    result.text = num_generated_ > params_.min_tokens ? text_.push(piece) : std::move(piece);
  }
  if (stops || text_.stopped() || (constraint_ && constraint_->is_terminated()))
    result.finish_reason = FinishReason::kStop;
  else if (num_generated_ >= params_.max_tokens)
    result.finish_reason = FinishReason::kLength;
  if (result.finish_reason != FinishReason::kNone) result.text += finish_text();
}

std::string Generation::finish_text() {
  if (!detokenizer_) return {};
  std::string rest = text_.push(detokenizer_->flush());
  return rest + text_.finish();
}

void check_sampling(const SamplingParams& params, int64_t vocab_size, bool has_tokenizer) {
  std::string problems = params.problems(vocab_size);
  if (!params.stop.empty() && !has_tokenizer) {
    if (!problems.empty()) problems += "; ";
    problems += "stop strings need a tokenizer and this model has none: use stop_token_ids";
  }
  if (!problems.empty()) throw Error(ErrorCode::kInvalidArgument, problems);
}

void check_ids(std::span<const int32_t> ids, int64_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab_size)
      throw make_error(ErrorCode::kInvalidArgument,
                       "token id {} at place {} is outside the vocabulary of {} (ids 0 to {})", ids[i], i, vocab_size,
                       vocab_size - 1);
}

}  // namespace coluber

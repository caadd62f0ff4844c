// SPDX-License-Identifier: Apache-2.0
//
// One sequence's answer while it is made: sampling, stop rules and streaming text. Requests and sessions both use it.
// It knows the tokens, not the cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coluber/engine.h"
#include "engine/output_text.h"
#include "kernels/sampling/sample.h"
#include "text/tokenizer/tokenizer.h"

namespace coluber {

class Generation {
 public:
  // `tokenizer` may be null: then there is no text and stop strings are refused by whoever checks the request.
  // The first token is drawn with number `first_position` of the seed's stream. `constraint`, where there is one, is
  // the answer's own.
  Generation(SamplingParams params, uint64_t seed, std::span<const int32_t> eos_token_ids, const Tokenizer* tokenizer,
             uint64_t first_position = 0, std::unique_ptr<TokenConstraint> constraint = nullptr);

  struct Result {
    TokenOutput token;
    std::string text;  // new text that may be shown
    FinishReason finish_reason = FinishReason::kNone;
    std::string error;  // with kError
    ErrorCode error_code = ErrorCode::kOk;
  };
  // Chooses the token that follows `tokens` (`num_prompt` of them the prompt) from their logits [V]. On kError no token
  // was chosen.
  Result next(std::span<const float> logits, std::span<const int32_t> tokens, int64_t num_prompt);
  // Whether the next token is the one of the largest logit, whatever the logits are, and nothing else is told of them.
  bool takes_largest() const noexcept;
  // The same as `next` then, without the logits: -1 where they are not finite.
  Result next_largest(int32_t id, size_t num_tokens);
  // Text still held back, for a sequence that is ended from outside (length limit, interrupt).
  std::string finish_text();
  int64_t num_generated() const noexcept { return num_generated_; }

 private:
  SampleResult choose(std::span<const float> logits, std::span<const int32_t> tokens, int64_t num_prompt);
  // Why there is no token, or the constraint does not take it; empty where all is well.
  void judge(const SampleResult& sample, size_t num_tokens, Result& result);
  std::span<const int32_t> banned_ids() const noexcept;
  void accept(SampleResult sample, Result& result);

  SamplingParams params_;
  uint64_t seed_;
  uint64_t first_position_;
  std::vector<int32_t> stop_ids_;  // end tokens of the model and of the request
  std::optional<DetokenizeStream> detokenizer_;
  OutputText text_;
  SampleScratch scratch_;
  std::unique_ptr<TokenConstraint> constraint_;
  std::vector<uint32_t> mask_;
  int64_t num_generated_ = 0;
};

// The rest of a request's checks that need the model: throws Error(kInvalidArgument) listing every problem.
void check_sampling(const SamplingParams& params, int64_t vocab_size, bool has_tokenizer);
// Throws Error(kInvalidArgument) naming the first id outside the vocabulary.
void check_ids(std::span<const int32_t> ids, int64_t vocab_size);

}  // namespace coluber

// SPDX-License-Identifier: Apache-2.0
//
// What a request wants of its prompt beside or instead of an answer: the log-probabilities of its tokens, or a vector
// pooled from its hidden states. Fed by position, so that a prompt that is begun anew gives the same. Knows no engine;
// one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coluber/engine.h"
#include "kernels/sampling/sample.h"

namespace coluber {

class PromptReader {
 public:
  PromptReader(Pooling pooling, std::optional<int> logprobs, int64_t prompt_tokens);

  bool wants_logits() const noexcept { return logprobs_.has_value(); }
  bool pools() const noexcept { return pooling_ != Pooling::kNone; }
  // Whether every token must be computed: what was found in a cache cannot be read.
  bool needs_every_token() const noexcept { return wants_logits() || pooling_ == Pooling::kMean; }

  // Logits [rows, vocab] after the tokens from position `begin` on. False where they are not finite.
  bool read_logits(std::span<const int32_t> tokens, int64_t begin, std::span<const float> logits, int64_t vocab);
  // Hidden states [rows, cols] of the tokens from position `begin` on.
  void read_hidden(int64_t begin, const float* values, int64_t rows, int64_t cols);

  std::vector<TokenOutput> take_logprobs() { return std::move(scored_); }
  std::vector<float> embedding() const;

 private:
  Pooling pooling_;
  std::optional<int> logprobs_;
  int64_t prompt_tokens_;
  SampleScratch scratch_;
  std::vector<TokenOutput> scored_;
  std::vector<double> sum_;
  int64_t num_summed_ = 0;
};

}  // namespace coluber

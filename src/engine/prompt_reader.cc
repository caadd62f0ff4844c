// SPDX-License-Identifier: Apache-2.0
#include "engine/prompt_reader.h"

#include <algorithm>

#include "base/error.h"

namespace coluber {

PromptReader::PromptReader(Pooling pooling, std::optional<int> logprobs, int64_t prompt_tokens)
    : pooling_(pooling), logprobs_(logprobs), prompt_tokens_(prompt_tokens) {
  if (logprobs_) scored_.resize(static_cast<size_t>(prompt_tokens));
}

bool PromptReader::read_logits(std::span<const int32_t> tokens, int64_t begin, std::span<const float> logits,
                               int64_t vocab) {
  if (begin == 0) scored_[0].id = tokens[0];
  const int64_t rows = std::ssize(logits) / vocab;
  for (int64_t row = 0; row < rows && begin + row + 1 < prompt_tokens_; ++row) {
    const auto next = static_cast<size_t>(begin + row + 1);
    SampleResult score = score_token(logits.data() + row * vocab, vocab, tokens[next], *logprobs_, scratch_);
    if (score.non_finite) return false;
    scored_[next] = {score.id, score.logprob, std::move(score.top_logprobs)};
  }
  return true;
}

void PromptReader::read_hidden(int64_t begin, const float* values, int64_t rows, int64_t cols) {
  if (begin == 0) {
    sum_.assign(static_cast<size_t>(cols), 0.0);
    num_summed_ = 0;
  }
  if (pooling_ == Pooling::kLast) {
    const float* last = values + (rows - 1) * cols;
    sum_.assign(last, last + cols);
    num_summed_ = 1;
    return;
  }
  COLUBER_CHECK(num_summed_ == begin && std::ssize(sum_) == cols, "{} tokens were pooled and the next is {}",
                num_summed_, begin);
  for (int64_t row = 0; row < rows; ++row, ++num_summed_)
    for (int64_t i = 0; i < cols; ++i) sum_[static_cast<size_t>(i)] += static_cast<double>(values[row * cols + i]);
}

std::vector<float> PromptReader::embedding() const {
  std::vector<float> mean(sum_.size());
  std::ranges::transform(sum_, mean.begin(),
                         [this](double sum) { return static_cast<float>(sum / static_cast<double>(num_summed_)); });
  return mean;
}

}  // namespace coluber

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "coluber/engine.h"
#include "engine/limits.h"

namespace coluber {

namespace {

class Problems {
 public:
  template <typename Value>
  void require(bool fine, const char* name, const char* expected, const Value& found) {
    if (!fine) add(fmt::format("{} must be {}, found {}", name, expected, found));
  }
  void add(const std::string& problem) {
    if (!text_.empty()) text_ += "; ";
    text_ += problem;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void check_biases(const std::vector<TokenBias>& biases, int64_t vocab_size, Problems& p) {
  std::vector<int32_t> ids;
  for (const TokenBias& bias : biases) {
    if (bias.id < 0 || bias.id >= vocab_size)
      p.add(fmt::format("the ids of logit_bias must lie in 0..{}, found {}", vocab_size - 1, bias.id));
    if (!(bias.bias >= -100.0f && bias.bias <= 100.0f))
      p.add(fmt::format("logit_bias must be between -100 and 100, found {} for token {}", bias.bias, bias.id));
    ids.push_back(bias.id);
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice != ids.end()) p.add(fmt::format("logit_bias must name each token once, found {} twice", *twice));
}

}  // namespace

std::string SamplingParams::problems(int64_t vocab_size) const {
  Problems p;
  p.require(std::isfinite(temperature) && temperature >= 0.0f, "temperature", "a finite number of at least 0",
            temperature);
  p.require(top_k >= -1, "top_k", "-1 or 0 (off) or at least 1", top_k);
  p.require(top_p > 0.0f && top_p <= 1.0f, "top_p", "above 0 and at most 1", top_p);
  p.require(min_p >= 0.0f && min_p <= 1.0f, "min_p", "between 0 and 1", min_p);
  p.require(std::isfinite(repetition_penalty) && repetition_penalty > 0.0f, "repetition_penalty", "a number above 0",
            repetition_penalty);
  p.require(presence_penalty >= -2.0f && presence_penalty <= 2.0f, "presence_penalty", "between -2 and 2",
            presence_penalty);
  p.require(frequency_penalty >= -2.0f && frequency_penalty <= 2.0f, "frequency_penalty", "between -2 and 2",
            frequency_penalty);
  if (prompt_logprobs)
    p.require(max_tokens >= 0, "max_tokens", "at least 0", max_tokens);
  else
    p.require(max_tokens >= 1, "max_tokens", "at least 1", max_tokens);
  p.require(min_tokens >= 0 && min_tokens <= max_tokens, "min_tokens", "between 0 and max_tokens", min_tokens);
  const std::string counts = fmt::format("between 0 and {}", kMostLogprobs);
  if (logprobs) p.require(*logprobs >= 0 && *logprobs <= kMostLogprobs, "logprobs", counts.c_str(), *logprobs);
  if (prompt_logprobs)
    p.require(*prompt_logprobs >= 0 && *prompt_logprobs <= kMostLogprobs, "prompt_logprobs", counts.c_str(),
              *prompt_logprobs);
  check_biases(logit_bias, vocab_size, p);
  for (int32_t id : allowed_token_ids)
    if (id < 0 || id >= vocab_size)
      p.add(fmt::format("allowed_token_ids must lie in 0..{}, found {}", vocab_size - 1, id));
  for (const std::string& word : stop)
    if (word.empty()) p.add("stop strings must not be empty");
  for (int32_t id : stop_token_ids)
    if (id < 0 || id >= vocab_size)
      p.add(fmt::format("stop_token_ids must lie in 0..{}, found {}", vocab_size - 1, id));
  return p.text();
}

std::string_view finish_reason_name(FinishReason reason) noexcept {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

}  // namespace coluber

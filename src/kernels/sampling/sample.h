// SPDX-License-Identifier: Apache-2.0
//
// From logits to a token: penalties, temperature, min-p, top-k, top-p and a seeded choice, in vLLM's order and
// meanings. Stop words, end tokens and grammars are not its business.
//
//   1. logit_bias is added
//      repetition_penalty r over prompt and output tokens: logit > 0 ? logit / r : logit * r
//      frequency_penalty f, presence_penalty s over output tokens: logit -= f * count, logit -= s
//      banned tokens, and those that allowed_token_ids or the mask leave out, become minus infinity
//   2. temperature below kGreedyTemperature: the largest logit, ties to the lowest id
//   3. else p = softmax(logits / temperature); a token stays where p >= min_p * max p, and it is among the top_k by
//      (logit descending, id ascending), and the tokens before it, of those that are left, hold less than top_p of
//      their sum
//   4. the first token whose running sum exceeds uniform_at(seed, position) times the whole
//
// Log-probabilities are the raw logits' log-softmax, before step 1.
//
// The same logits, parameters, seed and position give the same token on every machine: sums are double in a fixed
// order, exponentials exact_exp, and no step depends on the tier. Neither sorts more than it needs: one or two sweeps
// at memory speed for a vocabulary of 150,000. Not thread-safe with a shared scratch; nothing is allocated once the
// scratch has its size, but for `top_logprobs` where they are asked for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coluber/engine.h"

namespace coluber {

inline constexpr float kGreedyTemperature = 1e-5f;

struct SampleInput {
  const float* logits = nullptr;  // [V], left as they are
  int64_t vocab = 0;
  const SamplingParams& params;  // checked by SamplingParams::problems
  std::span<const int32_t> prompt_ids = {};
  std::span<const int32_t> output_ids = {};
  uint64_t seed = 0;
  uint64_t position = 0;                     // a number of its own for each token of a sequence
  std::span<const int32_t> banned_ids = {};  // e.g. end tokens before min_tokens
  std::span<const uint32_t> mask = {};       // bit t % 32 of word t / 32: token t may be chosen; empty: every one
};

struct SampleResult {
  int32_t id = -1;
  float logprob = 0.0f;                    // with params.logprobs only
  std::vector<TokenLogprob> top_logprobs;  // likewise, likeliest first
  bool non_finite = false;                 // a NaN or +infinity, or nothing above minus infinity: no token
  bool nothing_left = false;               // bans and the mask leave no token: no token
};

struct SampleCandidate {
  float logit = 0.0f;
  int32_t id = 0;
};

// Memory that is kept between calls.
struct SampleScratch {
  std::vector<float> logits;  // [V] after step 1, where it changes anything
  std::vector<float> block_maxima;
  std::vector<double> block_sums;
  std::vector<int32_t> counts;  // [V], all zero between calls
  std::vector<uint8_t> seen;    // [V], all zero between calls
  std::vector<SampleCandidate> candidates;
  std::vector<SampleCandidate> sorted;  // radix sort's other half
  std::vector<double> weights;
};

// Whether step 1 does anything where no token is banned or masked.
bool may_change_logits(const SamplingParams& params) noexcept;

SampleResult sample_token(const SampleInput& input, SampleScratch& scratch);

// The log-probability of a token that is given, and of the `top` likeliest ones. `non_finite` as above.
SampleResult score_token(const float* logits, int64_t vocab, int32_t id, int64_t top, SampleScratch& scratch);

}  // namespace coluber

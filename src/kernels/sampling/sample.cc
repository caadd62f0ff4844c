// SPDX-License-Identifier: Apache-2.0
#include "kernels/sampling/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/sampling/logits_ops.h"
#include "kernels/sampling/random.h"
#include "kernels/sampling/top_candidates.h"

namespace coluber {
namespace {

// Logits with the maxima of their blocks.
struct Scanned {
  const float* logits = nullptr;
  int64_t vocab = 0;
  float maximum = 0.0f;
  bool usable = false;
};

Scanned scan(const float* logits, int64_t vocab, SampleScratch& scratch) {
  scratch.block_maxima.resize(static_cast<size_t>((vocab + kScanBlock - 1) / kScanBlock));
  Scanned scanned{logits, vocab, -std::numeric_limits<float>::infinity(), false};
  if (vocab <= 0 || scan_logits()(ScanLogitsArgs{logits, vocab, scratch.block_maxima.data()})) return scanned;
  for (float m : scratch.block_maxima) scanned.maximum = std::max(scanned.maximum, m);
  scanned.usable = scanned.maximum > -std::numeric_limits<float>::infinity();
  return scanned;
}

bool changes_logits(const SampleInput& input) {
  return !input.banned_ids.empty() || !input.mask.empty() || may_change_logits(input.params);
}

// Penalties of a logit near the end of the float range must not turn into an infinity.
float clamp_finite(float x) {
  constexpr float kMost = std::numeric_limits<float>::max();
  return x == -std::numeric_limits<float>::infinity() ? x : std::clamp(x, -kMost, kMost);
}

// Marks in `seen` what is allowed, and unmarks it again.
void keep_allowed(const SampleInput& input, SampleScratch& scratch) {
  const std::vector<int32_t>& allowed = input.params.allowed_token_ids;
  if (allowed.empty()) return;
  const auto known = [&](int32_t id) { return id >= 0 && id < input.vocab; };
  for (const int32_t id : allowed)
    if (known(id)) scratch.seen[static_cast<size_t>(id)] = 1;
  for (size_t i = 0; i < scratch.logits.size(); ++i)
    if (scratch.seen[i] == 0) scratch.logits[i] = -std::numeric_limits<float>::infinity();
  for (const int32_t id : allowed)
    if (known(id)) scratch.seen[static_cast<size_t>(id)] = 0;
}

void keep_masked(const SampleInput& input, SampleScratch& scratch) {
  if (input.mask.empty()) return;
  for (size_t i = 0; i < scratch.logits.size(); ++i)
    if ((input.mask[i / 32] >> (i % 32) & 1u) == 0) scratch.logits[i] = -std::numeric_limits<float>::infinity();
}

void apply_penalties(const SampleInput& input, SampleScratch& scratch) {
  const SamplingParams& p = input.params;
  scratch.logits.assign(input.logits, input.logits + input.vocab);
  scratch.seen.resize(static_cast<size_t>(input.vocab), 0);
  scratch.counts.resize(static_cast<size_t>(input.vocab), 0);
  auto known = [&](int32_t id) { return id >= 0 && id < input.vocab; };
  for (const TokenBias& bias : p.logit_bias) {
    if (!known(bias.id)) continue;
    float& x = scratch.logits[static_cast<size_t>(bias.id)];
    x = clamp_finite(x + bias.bias);
  }
  auto repeat = [&](std::span<const int32_t> ids) {
    for (int32_t id : ids) {
      if (!known(id) || scratch.seen[static_cast<size_t>(id)] != 0) continue;
      scratch.seen[static_cast<size_t>(id)] = 1;
      float& x = scratch.logits[static_cast<size_t>(id)];
      x = clamp_finite(x > 0 ? x / p.repetition_penalty : x * p.repetition_penalty);
    }
  };
  if (p.repetition_penalty != 1.0f) {
    repeat(input.prompt_ids);
    repeat(input.output_ids);
    for (std::span<const int32_t> ids : {input.prompt_ids, input.output_ids}) {
      for (int32_t id : ids) {
        if (known(id)) scratch.seen[static_cast<size_t>(id)] = 0;
      }
    }
  }
  if (p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f) {
    for (int32_t id : input.output_ids) {
      if (known(id)) ++scratch.counts[static_cast<size_t>(id)];
    }
    for (int32_t id : input.output_ids) {
      if (!known(id) || scratch.counts[static_cast<size_t>(id)] == 0) continue;
      float& x = scratch.logits[static_cast<size_t>(id)];
      x -= p.frequency_penalty * static_cast<float>(std::exchange(scratch.counts[static_cast<size_t>(id)], 0));
      x = clamp_finite(x - p.presence_penalty);
    }
  }
  for (int32_t id : input.banned_ids) {
    if (known(id)) scratch.logits[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
  }
  keep_allowed(input, scratch);
  keep_masked(input, scratch);
}

int32_t argmax(const Scanned& scanned, const SampleScratch& scratch) {
  const auto block = std::find(scratch.block_maxima.begin(), scratch.block_maxima.end(), scanned.maximum);
  const float* begin = scanned.logits + (block - scratch.block_maxima.begin()) * kScanBlock;
  return static_cast<int32_t>(std::find(begin, scanned.logits + scanned.vocab, scanned.maximum) - scanned.logits);
}

double sum_all(const Scanned& scanned, double inverse_temperature, double floor, SampleScratch& scratch) {
  scratch.block_sums.resize(static_cast<size_t>((scanned.vocab + kSumBlock - 1) / kSumBlock));
  sum_weights()(SumWeightsArgs{scanned.logits, scanned.vocab, scanned.maximum, inverse_temperature, floor,
                               scratch.block_sums.data()});
  double total = 0;
  for (double sum : scratch.block_sums) total += sum;
  return total;
}

// Step 4 over the whole vocabulary, in the order of ids: find the block, then the token.
int32_t draw_from_all(const Scanned& scanned, double inverse_temperature, double floor, double uniform,
                      SampleScratch& scratch) {
  const double target = uniform * sum_all(scanned, inverse_temperature, floor, scratch);
  double running = 0;
  int64_t block = -1;  // ends as the block of the target, or the last one that holds anything
  for (int64_t b = 0; b < static_cast<int64_t>(scratch.block_sums.size()); ++b) {
    const double sum = scratch.block_sums[static_cast<size_t>(b)];
    if (sum == 0.0) continue;
    if (block >= 0) running += scratch.block_sums[static_cast<size_t>(block)];
    block = b;
    if (running + sum > target) break;
  }
  int32_t last = -1;
  for (int64_t i = block * kSumBlock; i < std::min((block + 1) * kSumBlock, scanned.vocab); ++i) {
    const double w = sampling_weight(scanned.logits[i], scanned.maximum, inverse_temperature, floor);
    if (w == 0.0) continue;
    last = static_cast<int32_t>(i);
    running += w;
    if (running > target) break;
  }
  return last;
}

// Weights of the candidates, best first; those below the floor go.
double weigh_candidates(const Scanned& scanned, double inverse_temperature, double floor, SampleScratch& scratch) {
  scratch.weights.clear();
  double total = 0;
  for (const SampleCandidate& c : scratch.candidates) {
    const double w = sampling_weight(c.logit, scanned.maximum, inverse_temperature, floor);
    if (w == 0.0) break;
    scratch.weights.push_back(w);
    total += w;
  }
  return total;
}

// Shortens the weights to the top-p part of `total`; false where they hold less than that.
bool cut_at_top_p(double top_p, double total, std::vector<double>& weights) {
  double before = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    before += weights[i];
    if (before < top_p * total) continue;
    weights.resize(i + 1);
    return true;
  }
  return false;
}

int32_t draw(const Scanned& scanned, const SampleInput& input, SampleScratch& scratch) {
  const SamplingParams& p = input.params;
  const double inverse_temperature = 1.0 / static_cast<double>(p.temperature);
  const double floor = std::max(0.0f, p.min_p), uniform = uniform_at(input.seed, input.position);
  const bool has_top_k = p.top_k > 0 && p.top_k < scanned.vocab, has_top_p = p.top_p < 1.0f;
  if (!has_top_k && !has_top_p) return draw_from_all(scanned, inverse_temperature, floor, uniform, scratch);
  if (has_top_k) {
    select_top_candidates(scanned.logits, scanned.vocab, scratch.block_maxima.data(), p.top_k, scratch);
    const double total = weigh_candidates(scanned, inverse_temperature, floor, scratch);
    if (has_top_p) cut_at_top_p(p.top_p, total, scratch.weights);
  } else {
    const double total = sum_all(scanned, inverse_temperature, floor, scratch);
    // Most distributions hold their top-p part in a few tokens: look at more only where they do not.
    for (int64_t count = 128;; count *= 16) {
      select_top_candidates(scanned.logits, scanned.vocab, scratch.block_maxima.data(), count, scratch);
      weigh_candidates(scanned, inverse_temperature, floor, scratch);
      if (cut_at_top_p(p.top_p, total, scratch.weights) || count >= scanned.vocab) break;
    }
  }
  double total = 0, running = 0;
  for (double w : scratch.weights) total += w;
  for (size_t i = 0; i < scratch.weights.size(); ++i) {
    running += scratch.weights[i];
    if (running > uniform * total) return scratch.candidates[i].id;
  }
  return scratch.candidates[scratch.weights.size() - 1].id;
}

void add_logprobs(const Scanned& raw, int64_t top, SampleScratch& scratch, SampleResult& result) {
  const double log_sum = static_cast<double>(raw.maximum) + std::log(sum_all(raw, 1.0, 0.0, scratch));
  auto logprob = [&](float logit) { return static_cast<float>(static_cast<double>(logit) - log_sum); };
  result.logprob = logprob(raw.logits[result.id]);
  select_top_candidates(raw.logits, raw.vocab, scratch.block_maxima.data(), top, scratch);
  for (const SampleCandidate& c : scratch.candidates) result.top_logprobs.push_back({c.id, logprob(c.logit)});
}

}  // namespace

bool may_change_logits(const SamplingParams& params) noexcept {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f ||
         !params.logit_bias.empty() || !params.allowed_token_ids.empty();
}

SampleResult sample_token(const SampleInput& input, SampleScratch& scratch) {
  SampleResult result;
  Scanned scanned = scan(input.logits, input.vocab, scratch);
  if (scanned.usable && changes_logits(input)) {
    apply_penalties(input, scratch);
    scanned = scan(scratch.logits.data(), input.vocab, scratch);
    result.nothing_left = !scanned.usable;
  }
  result.non_finite = !scanned.usable && !result.nothing_left;
  if (!scanned.usable) return result;
  result.id = input.params.temperature < kGreedyTemperature ? argmax(scanned, scratch) : draw(scanned, input, scratch);
  if (input.params.logprobs)
    add_logprobs(scan(input.logits, input.vocab, scratch), *input.params.logprobs, scratch, result);
  return result;
}

SampleResult score_token(const float* logits, int64_t vocab, int32_t id, int64_t top, SampleScratch& scratch) {
  SampleResult result;
  const Scanned scanned = scan(logits, vocab, scratch);
  result.non_finite = !scanned.usable;
  if (result.non_finite) return result;
  result.id = id;
  add_logprobs(scanned, top, scratch, result);
  return result;
}

}  // namespace coluber

// SPDX-License-Identifier: Apache-2.0
#include "engine/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace coluber {

BeamSearch::BeamSearch(BeamOptions options) : options_(std::move(options)), live_(1), candidates_(1) {}

int64_t BeamSearch::num_candidates() const noexcept {
  return std::max(2 * options_.width + std::ssize(options_.stop_ids), options_.reported);
}

void BeamSearch::score(size_t beam, std::vector<TokenLogprob> likeliest) {
  COLUBER_CHECK(!likeliest.empty(), "hypothesis {} was given no tokens to go on with", beam);
  candidates_.at(beam) = std::move(likeliest);
}

bool BeamSearch::is_ready() const noexcept {
  return std::ranges::none_of(candidates_, [](const auto& tokens) { return tokens.empty(); });
}

double BeamSearch::score_of(double cumulative_logprob, int64_t answer_tokens) const {
  return cumulative_logprob /
         std::pow(static_cast<double>(options_.prompt_tokens + answer_tokens), options_.length_penalty);
}

void BeamSearch::end(BeamHypothesis hypothesis, FinishReason reason) {
  hypothesis.finish_reason = reason;
  const int64_t counted = std::ssize(hypothesis.tokens) - (reason == FinishReason::kStop ? 1 : 0);
  hypothesis.score = score_of(hypothesis.cumulative_logprob, counted);
  const auto place = std::upper_bound(ended_.begin(), ended_.end(), hypothesis.score,
                                      [](double score, const BeamHypothesis& other) { return score > other.score; });
  ended_.insert(place, std::move(hypothesis));
  if (std::ssize(ended_) > options_.width) ended_.pop_back();
}

BeamHypothesis BeamSearch::extended(const Candidate& candidate) const {
  BeamHypothesis hypothesis = live_[candidate.parent];
  const std::vector<TokenLogprob>& likeliest = candidates_[candidate.parent];
  const int64_t reported = std::min(options_.reported, std::ssize(likeliest));
  hypothesis.tokens.push_back(
      {candidate.token.id, candidate.token.logprob, {likeliest.begin(), likeliest.begin() + reported}});
  hypothesis.cumulative_logprob = candidate.cumulative_logprob;
  return hypothesis;
}

void BeamSearch::collect(size_t beam, std::vector<Candidate>& going_on) {
  const bool may_end = std::ssize(live_[beam].tokens) >= options_.min_tokens;
  int64_t seen = 0;
  for (const TokenLogprob& token : candidates_[beam]) {
    const bool ends = std::ranges::find(options_.stop_ids, token.id) != options_.stop_ids.end();
    if (ends && !may_end) continue;
    if (seen++ == 2 * options_.width) break;
    const Candidate candidate{beam, token, live_[beam].cumulative_logprob + static_cast<double>(token.logprob)};
    if (ends)
      end(extended(candidate), FinishReason::kStop);
    else
      going_on.push_back(candidate);
  }
}

// Log-probabilities only fall. What a hypothesis can still reach is its score at the length that is kindest to it.
bool BeamSearch::can_still_win(const BeamHypothesis& hypothesis) const {
  if (std::ssize(ended_) < options_.wanted) return true;
  const double best = std::max(score_of(hypothesis.cumulative_logprob, std::ssize(hypothesis.tokens)),
                               score_of(hypothesis.cumulative_logprob, options_.max_tokens));
  return best > ended_[static_cast<size_t>(options_.wanted - 1)].score;
}

std::vector<size_t> BeamSearch::advance() {
  std::vector<Candidate> going_on;
  for (size_t beam = 0; beam < live_.size(); ++beam) collect(beam, going_on);
  std::ranges::stable_sort(going_on, std::greater<>(), &Candidate::cumulative_logprob);
  if (std::ssize(going_on) > options_.width) going_on.resize(static_cast<size_t>(options_.width));
  std::vector<BeamHypothesis> next;
  std::vector<size_t> parents;
  for (const Candidate& candidate : going_on) {
    next.push_back(extended(candidate));
    parents.push_back(candidate.parent);
  }
  live_ = std::move(next);
  const bool is_full = !live_.empty() && std::ssize(live_.front().tokens) >= options_.max_tokens;
  if (is_full)
    for (BeamHypothesis& hypothesis : live_) end(std::move(hypothesis), FinishReason::kLength);
  const bool is_early = options_.early_stopping && std::ssize(ended_) >= options_.width;
  const auto wins = [this](const BeamHypothesis& hypothesis) { return can_still_win(hypothesis); };
  if (is_full || is_early || std::ranges::none_of(live_, wins)) {
    live_.clear();
    parents.clear();
  }
  candidates_.assign(live_.size(), {});
  return parents;
}

std::vector<BeamHypothesis> BeamSearch::take_best() {
  if (std::ssize(ended_) > options_.wanted) ended_.resize(static_cast<size_t>(options_.wanted));
  return std::move(ended_);
}

}  // namespace coluber

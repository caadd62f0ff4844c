// SPDX-License-Identifier: Apache-2.0
//
// Beam search over hypotheses, apart from whoever computes their logits. Of every hypothesis that goes on, the
// 2 * width likeliest tokens are looked at: an end token makes it an answer; of all others together, the `width`
// likeliest hypotheses go on. Score: cumulative log-probability / tokens ^ length_penalty, where tokens counts the
// prompt, and no end token. Ends at max_tokens, with early stopping as soon as `width` answers are there, and in any
// case when no hypothesis that goes on can still be among the `wanted` best. Ties go to what came first: the better
// hypothesis, then the likelier token, then the lower id. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "coluber/engine.h"

namespace coluber {

struct BeamOptions {
  int64_t width = 1;
  int64_t wanted = 1;  // answers that will be asked for
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 1;
  int64_t min_tokens = 0;  // end tokens before are looked over
  double length_penalty = 1.0;
  bool early_stopping = false;
  std::vector<int32_t> stop_ids;
  int64_t reported = 0;  // likeliest tokens that answers tell of each place
};

struct BeamHypothesis {
  std::vector<TokenOutput> tokens;
  double cumulative_logprob = 0.0;
  double score = 0.0;  // of those that have ended
  FinishReason finish_reason = FinishReason::kNone;
};

class BeamSearch {
 public:
  explicit BeamSearch(BeamOptions options);  // begins with one hypothesis of no tokens

  int64_t num_live() const noexcept { return std::ssize(live_); }
  // How many of the likeliest tokens a hypothesis needs.
  int64_t num_candidates() const noexcept;
  bool is_scored(size_t beam) const noexcept { return !candidates_[beam].empty(); }
  // The likeliest tokens after a hypothesis, likeliest first; at least one.
  void score(size_t beam, std::vector<TokenLogprob> likeliest);
  bool is_ready() const noexcept;
  // All are scored: the next hypotheses, best first. Gives for each the place of the one that it goes on from.
  std::vector<size_t> advance();
  int32_t last_token(size_t beam) const { return live_[beam].tokens.back().id; }
  bool is_done() const noexcept { return live_.empty(); }
  // Best first, at most `wanted`; as many only where so many have ended.
  std::vector<BeamHypothesis> take_best();

 private:
  struct Candidate {
    size_t parent = 0;
    TokenLogprob token;
    double cumulative_logprob = 0.0;
  };
  void collect(size_t beam, std::vector<Candidate>& going_on);
  BeamHypothesis extended(const Candidate& candidate) const;
  void end(BeamHypothesis hypothesis, FinishReason reason);
  double score_of(double cumulative_logprob, int64_t answer_tokens) const;
  bool can_still_win(const BeamHypothesis& hypothesis) const;

  BeamOptions options_;
  std::vector<BeamHypothesis> live_;  // best first
  std::vector<std::vector<TokenLogprob>> candidates_;
  std::vector<BeamHypothesis> ended_;  // best first, at most `width`
};

}  // namespace coluber

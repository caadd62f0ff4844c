// SPDX-License-Identifier: Apache-2.0
//
// At which positions of a sequence a state is kept for later sequences that begin alike. Prefill chunks must end there,
// because a state is known only where a chunk ends. The scheduler asks where to cut, the cache what to keep: both ask
// here, so that they cannot disagree. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coluber/kv_cache_spec.h"

namespace coluber {

struct CheckpointPolicy {
  MambaCacheMode mode = MambaCacheMode::kNone;
  int64_t unit = 16;                  // tokens of a block of the prefix tree; kAuto keeps states at its multiples
  int64_t block_size = 256;           // kAll, kAlign: tokens between checkpoints
  std::optional<int64_t> match_unit;  // kAlign: finest position of a checkpoint; unset: block_size
  std::optional<int64_t> retention_interval;  // kAll, kAlign: of the inner checkpoints, one so many tokens; 0: none
  bool drop_last_block = false;               // a drafter makes the last block unusable
};

// A prompt as the policy sees it when its request is admitted.
struct PromptFacts {
  int64_t prompt_tokens = 0;
  int64_t hit_tokens = 0;       // already computed
  int64_t common_tokens = 0;    // that an earlier sequence began with: the two part here
  int64_t max_checkpoints = 0;  // that there is memory for
};

// kAll and kAuto: the positions to keep, ascending, after the hit and up to the prompt's end. kAlign has none: its
// positions follow from the steps (align_split).
void plan_checkpoints(const CheckpointPolicy& policy, const PromptFacts& facts, std::vector<int64_t>& positions);

// Whether a state at `position`, where a step ended, is kept although it was not planned: block ends, while prompts and
// answers are computed.
bool keeps_step_end(const CheckpointPolicy& policy, const PromptFacts& facts, int64_t position);

// Where between `start` and `end` a step that runs over both leaves states, for layers that can export them from inside
// a chunk; ascending, no more than facts.max_checkpoints. kAll and kAuto: of the `planned` ones. kAlign: block ends,
// and the finest boundary before the prompt's end.
void inner_checkpoints(const CheckpointPolicy& policy, const PromptFacts& facts, const std::vector<int64_t>& planned,
                       int64_t start, int64_t end, std::vector<int64_t>& positions);

// ---- mode align, by the contract's rules (chunk ends of a prefill) ---------------------------------------------

struct AlignRule {
  int64_t block_size = 0;
  int64_t hash_block_size = 0;  // finest position; block_size where hits are whole blocks only
  bool drop_last_block = false;
  bool exports_mid_prefill = false;  // every layer can export a state inside a chunk
  std::optional<int64_t> export_alignment;
  bool exact_junction = false;  // a checkpoint where prompts part, although it is no block end
  int64_t max_chunk = 0;        // the least of the token budget and the long-prefill threshold
};

struct AlignFacts {
  int64_t start = 0;       // computed, or found in the cache
  int64_t new_tokens = 0;  // offered
  int64_t prompt_tokens = 0;
  int64_t num_tokens = 0;  // prompt and what was sampled
  int64_t junction = 0;    // where another sequence parts from this one; 0: nowhere
};

// Tokens to schedule, of those offered; 0: none in this step.
int64_t align_split(const AlignRule& rule, const AlignFacts& facts);

// The rule of a policy, for layers whose states are kept at chunk ends.
AlignRule align_rule_of(const CheckpointPolicy& policy, int64_t max_chunk);

}  // namespace coluber

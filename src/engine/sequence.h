// SPDX-License-Identifier: Apache-2.0
//
// One sequence of the engine: its tokens, the cache it owns (one recurrent slot, attention pages) and how far it has
// been computed. Plain data; StateCache fills and frees the ids, the runner advances `num_computed_tokens`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache/parking.h"
#include "cache/state_tag.h"
#include "coluber/prefix_cache.h"

namespace coluber {

// A sequence's place in the prefix tree, which counts it. A copy of a sequence stands nowhere until it takes a place of
// its own.
struct TreePlace {
  int32_t node = -1;  // locked; -1: none
  TreePlace() = default;
  TreePlace(const TreePlace&) {}
  TreePlace& operator=(const TreePlace&) { return *this; }
};

// States that the running step leaves from inside its tokens, each in a slot that is the sequence's until the step's
// end. A copy of a sequence has none.
struct InnerState {
  int64_t position = 0;
  int32_t slot = 0;
  PrefixHash prefix_hash;
};
struct InnerStates {
  std::vector<InnerState> list;  // by position
  InnerStates() = default;
  InnerStates(const InnerStates&) {}
  InnerStates& operator=(const InnerStates&) { return *this; }
};

// What the prefix cache found for a sequence, and where it shall keep states of it.
struct PrefixUse {
  int64_t hit_tokens = 0;
  int64_t common_tokens = 0;
  MissReason reason = MissReason::kNone;
  std::vector<int64_t> checkpoints;  // positions, ascending
};

struct Sequence {
  std::vector<int32_t> tokens;  // prompt, then what was sampled
  int64_t num_prompt_tokens = 0;
  int64_t num_computed_tokens = 0;  // tokens whose effect the state holds
  int32_t state_slot = 0;           // 0: none
  std::vector<int32_t> pages;       // attention pages, in order of position
  PrefixHash prefix_hash;           // of the computed tokens
  bool long_rope = false;           // its positions turn as those of a long sequence

  int64_t request_id = 0;  // 0: a session's, which the prefix cache leaves alone
  std::string cache_salt;
  PrefixUse prefix;
  bool wants_all_logits = false;  // of its prompt
  bool is_private = false;        // goes on from a session: nothing of it is kept for others
  bool shuns_cached = false;      // begins at its first token, whatever an earlier request computed
  int64_t most_chunk_tokens = 0;  // tokens of a step; 0: as many as there is room for
  TreePlace place;
  InnerStates inner;
  int64_t checked_tokens = 0;              // attention pages up to here were found finite
  int64_t num_starts = 0;                  // more than 1: it was preempted
  int64_t lost_tokens = 0;                 // computed when it was preempted, and to be computed again
  std::shared_ptr<ParkedSequence> parked;  // while it is preempted

  int64_t num_tokens() const noexcept { return static_cast<int64_t>(tokens.size()); }
  int64_t num_uncomputed() const noexcept { return num_tokens() - num_computed_tokens; }
  bool is_prefilling() const noexcept { return num_computed_tokens < num_prompt_tokens; }
};

}  // namespace coluber
